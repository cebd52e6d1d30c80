"""The configs that ship; `deltacell.train.config.compose` puts them together."""
