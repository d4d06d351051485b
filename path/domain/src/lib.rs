//! What every domain links, and the driver and guest programs
