//! Devices that the system hands over.

use crate::platform::Platform;
use crate::start::{StartError, refused};
use config::domain::Capture;
use nic::Nic;
use nic::pcap::{Pace, PcapError, PcapNic, Reader, Writer};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// The descriptor of a device of this domain's.
///
/// # Errors
/// The system refuses it.
pub fn attach(platform: &dyn Platform, device: u32) -> Result<OwnedFd, StartError> {
    platform
        .attach(device)
        .map_err(|why| refused(&format!("device {device}"), why))
}

/// The descriptor of a device of this domain's, or `None` if the system has no device for it: the
/// interface was removed before the domain started, and could not be made again.
///
/// # Errors
/// The system refuses it for another reason.
pub fn attach_if_there(
    platform: &dyn Platform,
    device: u32,
) -> Result<Option<OwnedFd>, StartError> {
    match platform.attach(device) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
        attached => attached
            .map(Some)
            .map_err(|why| refused(&format!("device {device}"), why)),
    }
}

/// Gives devices up whose interface was removed, so that no sleep ends because of them.
#[must_use]
pub fn give_up(platform: &Rc<dyn Platform>, devices: Vec<u32>) -> Box<dyn FnOnce()> {
    let platform = Rc::clone(platform);
    Box::new(move || {
        for device in devices {
            // A system that does not take it back waits for open descriptors alone.
            let _ = platform.end(device);
        }
    })
}

/// A NIC that plays the capture file of one device and records to that of another.
///
/// # Errors
/// A device was refused, or is no capture file.
pub fn pcap(platform: &dyn Platform, files: Capture) -> Result<Box<dyn Nic>, StartError> {
    let wrong = |error: PcapError| {
        refused(
            "a capture file",
            io::Error::new(io::ErrorKind::InvalidData, error),
        )
    };
    let open = |device: Option<u32>| {
        let device = device.map(|device| attach(platform, device));
        device.transpose().map(|fd| fd.map(File::from))
    };
    let reader = open(files.read)?
        .map(Reader::new)
        .transpose()
        .map_err(wrong)?;
    // What turns the monotonic clock of the data path into the time of day of the file.
    let day = std::time::UNIX_EPOCH
        .elapsed()
        .map_or(0, |since| since.as_nanos() as u64);
    let epoch_ns = day.saturating_sub(shmem::time::monotonic_ns());
    let limit_bytes = u64::from(files.write_mib) << 20;
    let writer = open(files.write)?.map(|file| Writer::new(file, epoch_ns, limit_bytes));
    let writer = writer.transpose().map_err(wrong)?;
    // To the console, which bounds what it takes, once for each file.
    let tell = |why: &PcapError| {
        crate::start::print_line(format_args!(
            "a capture file has ended: {why}; traffic goes on"
        ));
    };
    let nic = PcapNic::new(reader, writer, Pace::default(), tell);
    Ok(Box::new(nic))
}
