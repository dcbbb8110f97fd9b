"""`python -m trioserve_tools.drill`: breaks a server on purpose, in every way that is promised to be survived.

Every drill starts real servers, does to them what its name says as often as its figure asks for, and compares what
came of it with what must. All that is drawn by chance comes from one seed. The full form writes the fault scoreboard.
"""
