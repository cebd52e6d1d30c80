"""The configs that ship; `deltacell.train.compose` puts them together."""
