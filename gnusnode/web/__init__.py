"""The one guarded way out to the web: addresses, URLs, connections, robots and limits that every caller shares.

Tools, grounding, memory and model downloads all fetch through here, so that a check which holds for one holds for all.
"""
