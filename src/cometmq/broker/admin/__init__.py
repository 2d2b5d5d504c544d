"""What operators and tools ask: topics, groups, clients, progress, statistics, configuration.

mqadmin's commands end here.
"""
