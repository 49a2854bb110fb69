"""The parts that all studies share: tasks, resumable runs, tables and reports."""
