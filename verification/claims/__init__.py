"""The paper's statements as claims, one folder per section; `beyond` holds our own statements."""
