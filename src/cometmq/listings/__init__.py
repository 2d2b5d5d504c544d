"""What a cluster says, as rows: commands print them, the console shows them.

Each function asks through an admin client and gives rows with the same field names everywhere.
"""
