"""`python -m trioserve_tools.scheduling`: the scheduler in the simulator, against closed forms, targets and rivals."""
