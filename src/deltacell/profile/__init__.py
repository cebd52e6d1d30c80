"""Where training time goes: phases, traces, and explanations; it works without the models."""
