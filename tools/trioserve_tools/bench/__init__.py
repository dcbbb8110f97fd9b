"""`python -m trioserve_tools.bench`: how fast the server is on this machine, against what it can be compared with.

Every figure is taken in one run together with its comparison: the subjects take turns (A B A B), what is said is the
median of the rounds' ratios with their spread, and how busy the machine was with anything else.
"""
