"""The machinery of studies: tasks, resumable runs, outputs."""
