"""Plans attacks and studies and carries them out; knows no command line."""
