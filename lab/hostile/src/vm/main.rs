//! A virtual machine monitor and its guest in one program, without an emulator. `hostile-vm SOCKET
//! ADDRESS [PAIRS]` connects to a vhost-user socket, and its guest answers ARP, pings and UDP. It
//! reconnects immediately when the back end closes the connection. With `hostile-vm SOCKET listen
//! ADDRESS`, it creates the socket, and the back end connects. With `hostile-vm SOCKET busy MAC`,
//! the guest sends frames to a MAC as fast as the back end accepts them. `hostile-vm SOCKET hostile
//! SEED` sends random messages, descriptors and indices.

mod connection;
mod guest;
mod hostile;
mod station;

use anyhow::Context as _;
use config::MacAddress;
use std::path::Path;

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    match words[..] {
        [socket, "hostile", seed] => hostile::run(Path::new(socket), seed.parse()?),
        [socket, "busy", mac] => guest::flood(Path::new(socket), mac.parse::<MacAddress>()?.0),
        [socket, "listen", address] => guest::listen(Path::new(socket), address.parse()?),
        [socket, address] => guest::run(Path::new(socket), address.parse()?, 1),
        [socket, address, pairs] => guest::run(Path::new(socket), address.parse()?, pairs.parse()?),
        _ => None.context(
            "usage: hostile-vm SOCKET [ADDRESS [PAIRS]|listen ADDRESS|busy MAC|hostile SEED]",
        ),
    }
}
