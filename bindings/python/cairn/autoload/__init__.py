"""The folder that `cairn run` puts on PYTHONPATH; nothing is imported from here."""
