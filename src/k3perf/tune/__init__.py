"""Choose serving settings from measured sessions: which point is measured next, what a
sweep shows, what is proposed. Pure: no engine, clock or file.
"""
