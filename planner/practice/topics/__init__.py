"""The questions, one module a section of the chapter: ``KINDS`` draw numbers, ``SYLLABUS`` is fixed."""
