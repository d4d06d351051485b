//! Frames, buffers and network interfaces in memory
