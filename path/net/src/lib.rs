//! Packets and the bridge: pure, time passed in
