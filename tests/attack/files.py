"""Attacks through files."""
def run(server, is_short, environment):
    return []
