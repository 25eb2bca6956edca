"""Interview practice: questions whose keys the cost module computes, the rules check or the solver proves."""
