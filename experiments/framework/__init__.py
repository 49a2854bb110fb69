"""What every study uses: tasks, runs that resume, progress, outputs."""
