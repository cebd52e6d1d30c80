"""Messages between pairs: the screen as a relation, and the predictors that read it."""
