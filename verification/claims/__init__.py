"""The paper's statements as claims, a folder per section; `beyond` holds our own."""
