"""What the command line shows and reads: options, help, progress, summary."""
