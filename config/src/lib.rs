//! Configuration files: parse and validate, nothing else
