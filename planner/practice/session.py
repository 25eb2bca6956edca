"""The interactive session: reads a line, says what follows. The command line hands in both."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from planner.errors import BadInput
from planner.practice.grade import Grade, grade
from planner.practice.progress import Progress
from planner.practice.question import LETTERS, Choice, Question
from planner.practice.show import explanation_text, question_text, wrap

HELP = (
    "Type your answer, or: hint (h), explain (e), follow (f, one number changes), next (n), score, quit (q)."
)
_WORDS = {
    "h": "hint", "hint": "hint", "e": "explain", "explain": "explain", "f": "follow", "follow": "follow",
    "n": "next", "next": "next", "skip": "next", "s": "score", "score": "score", "q": "quit", "quit": "quit",
    "exit": "quit", "?": "help", "help": "help", "ask": "ask",
}  # fmt: skip


@dataclass
class Asked:
    """How far one question has come."""

    question: Question
    helped: bool = False
    settled: bool = False
    """The first answer, or the explanation before any, decided what is recorded."""
    done: bool = False
    """Answered rightly or explained."""


class Session:
    """One run through some questions.

    Parameters
    ----------
    read
        Returns the next line of the user; raises ``EOFError`` at the end.
    say
        Shows text.
    progress
        Where answers are recorded; None keeps nothing.
    """

    def __init__(
        self,
        questions: Sequence[Question],
        read: Callable[[], str],
        say: Callable[[str], None],
        progress: Progress | None = None,
    ) -> None:
        self._questions = list(questions)
        self._read, self._say, self._progress = read, say, progress
        self.answered = 0
        self.right = 0
        self.points = 0.0

    def run(self) -> None:
        """Ask all questions until the last one, ``quit`` or the end of the input."""
        self._say(HELP)
        try:
            for number, question in enumerate(self._questions, start=1):
                self._say(f"\nQuestion {number} of {len(self._questions)}")
                if not self._one(question):
                    break
        except EOFError:
            self._say("")
        self._say(self.score_text())

    def score_text(self) -> str:
        """Right answers so far."""
        if not self.answered:
            return "Score: nothing answered yet."
        share = 100 * self.right / self.answered
        extra = "" if self.points == self.right else f" ({self.points:.2f} points with plans by their loss)"
        return f"Score: {self.right} of {self.answered} right at the first try, {share:.0f} %{extra}."

    def _one(self, question: Question) -> bool:
        """Ask one question and its follow-ups; return whether to go on with the next."""
        state, waiting = Asked(question), list(question.follow_ups)
        self._say(question_text(question))
        while True:
            line = self._read().strip()
            word = _WORDS.get(line.lower(), "") if not self._is_letter(line, state) else ""
            if word == "quit":
                return False
            if word == "next":
                return True
            if word == "follow":
                if not waiting:
                    self._say("There is no further follow-up; next goes on.")
                    continue
                state = Asked(waiting.pop(0))
                self._say(question_text(state.question))
            elif word:
                self._command(word, state)
            elif line and not state.done:
                self._answer(line, state, bool(waiting))
            elif line:
                self._say("This one is answered. " + self._after(bool(waiting)))

    @staticmethod
    def _is_letter(line: str, state: Asked) -> bool:
        """Whether a letter such as e or h picks an option here instead of being a command."""
        key = state.question.key
        return isinstance(key, Choice) and line.lower() in set(LETTERS[: len(key.options)])

    def _command(self, word: str, state: Asked) -> None:
        if word == "hint":
            state.helped = True
            self._say(wrap(f"Hint: {state.question.hint}"))
        elif word == "explain":
            if not state.done:
                self._settle(state, Grade(right=False, score=0.0, message=""))
            state.done = True
            self._say(explanation_text(state.question))
        elif word == "score":
            self._say(self.score_text())
        elif word == "ask":
            self._say(question_text(state.question))
        else:
            self._say(HELP)

    def _answer(self, line: str, state: Asked, more: bool) -> None:
        try:
            found = grade(state.question, line)
        except BadInput as error:
            self._say(wrap(f"{error} (not counted)"))
            return
        self._settle(state, found)
        self._say(wrap(found.message))
        if found.right:
            state.done = True
            self._say(explanation_text(state.question))
            self._say(self._after(more))
        else:
            state.helped = True
            self._say("Try again, or hint, explain, next.")

    def _settle(self, state: Asked, found: Grade) -> None:
        """Count and record the first answer to a question."""
        if state.settled:
            return
        state.settled = True
        self.answered += 1
        self.right += found.right
        self.points += found.score
        if self._progress is None:
            return
        try:
            self._progress.record(state.question.ident, state.question.card, found.right, state.helped)
        except BadInput as error:
            self._say(f"Progress is not kept: {error}")
            self._progress = None

    @staticmethod
    def _after(more: bool) -> str:
        return "follow changes one number; next goes on." if more else "next goes on."
