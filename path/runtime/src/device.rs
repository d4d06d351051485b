//! Attaches and releases devices that the system provides.

use crate::platform::Platform;
use crate::start::{StartError, rejected_error};
use config::domain::CaptureSpec;
use nic::Nic;
use nic::pcap::{FrameReader, FrameWriter, Pace, PcapError, PcapNic};
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::rc::Rc;

/// Attaches a device of this domain and returns its descriptor.
///
/// # Errors
/// Returns an error if the system rejects the call.
pub fn attach(platform: &dyn Platform, device: u32) -> Result<OwnedFd, StartError> {
    platform
        .attach(device)
        .map_err(|why| rejected_error(&format!("device {device}"), why))
}

/// Attaches a device of this domain and returns its descriptor. Returns `None` if the device does
/// not exist, because its interface was removed before the domain started and could not be created
/// again.
///
/// # Errors
/// Returns an error if the system rejects the call for another reason.
pub fn attach_if_present(
    platform: &dyn Platform,
    device: u32,
) -> Result<Option<OwnedFd>, StartError> {
    match platform.attach(device) {
        Err(why) if why.kind() == io::ErrorKind::NotFound => Ok(None),
        attached => attached
            .map(Some)
            .map_err(|why| rejected_error(&format!("device {device}"), why)),
    }
}

/// Returns an action that releases devices whose interface was removed, so that they no longer end
/// a sleep.
#[must_use]
pub fn removal_handler(platform: &Rc<dyn Platform>, devices: Vec<u32>) -> Box<dyn FnOnce()> {
    let platform = Rc::clone(platform);
    Box::new(move || {
        for device in devices {
            // If the system rejects the call, no harm results, because a closed descriptor ends no
            // sleep.
            let _ = platform.end(device);
        }
    })
}

/// Returns a NIC that plays the capture file of one device and records to the capture file of
/// another.
///
/// # Errors
/// Returns an error if a device was rejected or is not a capture file.
pub fn pcap(platform: &dyn Platform, files: CaptureSpec) -> Result<Box<dyn Nic>, StartError> {
    let wrong = |error: PcapError| {
        rejected_error(
            "a capture file",
            io::Error::new(io::ErrorKind::InvalidData, error),
        )
    };
    let open = |device: Option<u32>| {
        let device = device.map(|device| attach(platform, device));
        device.transpose().map(|fd| fd.map(File::from))
    };
    let reader = open(files.read)?
        .map(FrameReader::new)
        .transpose()
        .map_err(wrong)?;
    // The file contains the time of day, but the data path uses the monotonic clock.
    let day = std::time::UNIX_EPOCH
        .elapsed()
        .map_or(0, |since| since.as_nanos() as u64);
    let epoch_ns = day.saturating_sub(shmem::time::monotonic_ns());
    let limit_bytes = u64::from(files.write_mib) << 20;
    let writer = open(files.write)?.map(|file| FrameWriter::new(file, epoch_ns, limit_bytes));
    let writer = writer.transpose().map_err(wrong)?;
    // Each file causes at most one line on the console.
    let tell = |why: &PcapError| {
        crate::start::print_line(format_args!(
            "a capture file has ended: {why}; traffic continues"
        ));
    };
    let nic = PcapNic::new(reader, writer, Pace::default(), tell);
    Ok(Box::new(nic))
}
