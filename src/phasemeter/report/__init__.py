"""What people and programs read: terminal, HTML, JSON, CSV, Markdown."""
