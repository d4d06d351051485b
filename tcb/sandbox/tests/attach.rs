//! Attach calls, by which a domain requests descriptors.

mod common;

use abi::ConnId;
use abi::hypercall::{ATTACH_MAGIC, AttachTarget};
use abi::layout::fd::{DEVICE, DOORBELL};
use common::{SCRATCH, TestDomain, descriptors, exits_within, serialize};
use rustix::event::{EventfdFlags, eventfd};
use sandbox::PendingCall;
use std::os::fd::AsFd;
use std::time::Duration;

fn attach_call(target: &mut TestDomain, what: AttachTarget) -> PendingCall {
    let [kind, index] = what.encode();
    target.order(3, &[libc::SYS_getppid as u64, ATTACH_MAGIC, kind, index]);
    let receive = || {
        target
            .domain
            .attach
            .receive(Duration::ZERO)
            .expect("a port")
    };
    let call = testing::wait_for("no attach call arrived", receive);
    assert_eq!(
        AttachTarget::decode([call.args[1], call.args[2]]),
        Some(what)
    );
    call
}

#[test]
fn a_domain_receives_requested_descriptors() {
    let Some(_guard) = serialize() else { return };
    let mut target = TestDomain::new();
    assert_eq!(
        target
            .domain
            .attach
            .receive(Duration::ZERO)
            .expect("a port"),
        None,
        "an unexpected attach call is pending"
    );
    let bell = eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).expect("an eventfd");

    let call = attach_call(&mut target, AttachTarget::Doorbell(ConnId(88)));
    target
        .domain
        .attach
        .add_descriptor(call.id, bell.as_fd(), DOORBELL as u32 + 88, true)
        .expect("answered");
    assert_eq!(target.answer(), Some(Ok(600)));
    let open = descriptors(target.domain.pid);
    assert!(open.is_none_or(|open| open == [0, 1, 2, 3, 4, 600]));

    // The domain can ring the doorbell but cannot read it, so the peer's wake-up remains.
    target.scratch(&1u64.to_ne_bytes());
    assert_eq!(target.call(libc::SYS_write, &[600, SCRATCH, 8]), Some(8));
    assert_eq!(
        target.call(libc::SYS_read, &[600, SCRATCH, 8]),
        Some(i64::from(-libc::EPERM))
    );
    let mut count = [0; 8];
    assert_eq!(rustix::io::read(&bell, &mut count), Ok(8));
    assert_eq!(u64::from_ne_bytes(count), 1);

    // The domain can read from an attached device.
    let device = eventfd(5, EventfdFlags::CLOEXEC).expect("an eventfd");
    let call = attach_call(&mut target, AttachTarget::Device(2));
    target
        .domain
        .attach
        .add_descriptor(call.id, device.as_fd(), DEVICE as u32 + 2, true)
        .expect("answered");
    assert_eq!(target.answer(), Some(Ok(18)));
    assert_eq!(target.call(libc::SYS_read, &[18, SCRATCH, 8]), Some(8));
}

#[test]
fn refusals_and_bad_numbers_fail_the_call() {
    let Some(_guard) = serialize() else { return };
    let mut target = TestDomain::new();
    let bell = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
    let call = attach_call(&mut target, AttachTarget::Device(0));
    target
        .domain
        .attach
        .answer(call.id, 0, libc::ENOENT)
        .expect("answered");
    assert_eq!(target.answer(), Some(Ok(i64::from(-libc::ENOENT) as u64)));

    let call = attach_call(&mut target, AttachTarget::Device(0));
    for beyond_the_limit in [5000, u32::MAX] {
        let port = &target.domain.attach;
        let result = port.add_descriptor(call.id, bell.as_fd(), beyond_the_limit, true);
        assert!(result.is_err(), "{beyond_the_limit}");
    }
    target
        .domain
        .attach
        .answer(call.id, 0, libc::EMFILE)
        .expect("answered");
    assert_eq!(target.answer(), Some(Ok(i64::from(-libc::EMFILE) as u64)));
}

#[test]
fn a_dead_caller_is_reported() {
    let Some(_guard) = serialize() else { return };
    let mut target = TestDomain::new();
    let bell = eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd");
    let call = attach_call(&mut target, AttachTarget::Device(0));
    target.kill();
    assert!(exits_within(&target.domain.pidfd, Duration::ZERO));
    let port = &target.domain.attach;
    let put = port.add_descriptor(call.id, bell.as_fd(), DEVICE as u32, true);
    let answered = port.answer(call.id, 0, libc::EIO);
    let received = port.receive(Duration::ZERO).map(drop);
    for result in [put, answered, received] {
        assert_eq!(result.unwrap_err().raw_os_error(), Some(libc::ENOENT));
    }
}
