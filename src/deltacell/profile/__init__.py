"""Where training time goes: phases, the capture window, traces, and what limits a run.

It stands alone, so that any program's time can be looked at without the models.
"""
