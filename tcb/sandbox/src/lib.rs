//! Starts a program as a confined domain and maps pages into it through its agent
