"""The paper's statements as executable claims, and their report."""
