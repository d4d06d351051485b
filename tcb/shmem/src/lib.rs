//! Memory that somebody else may change or take away at any moment
