//! Validation of plans.

use super::column::{Column, Gro, PathKind};
use super::file::Plan;
use super::frames::{FrameRule, Frames, Peer};
use super::lro::LroRules;
use super::threshold::names_column;
use super::topology::Mechanisms;
use super::wire::{PollMode, WireNic, WireOffload};
use super::workload::{ReceiveWorkload, Web};
use crate::load::CHUNK;
use figures::metric;
use std::collections::BTreeSet;
use std::ops::RangeInclusive;

/// Column names already used in the plan.
type Seen<'a> = BTreeSet<&'a str>;

/// Validates a plan. Returns a description of the first error.
pub(super) fn check(plan: &Plan) -> Result<(), String> {
    for (name, rounds) in [("full", plan.full), ("quick", plan.quick)] {
        rounds.check(name)?;
    }
    if plan.quick.window_s > 1.0 {
        return Err("quick: window_s must be at most 1".to_owned());
    }
    let fits = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || c == '-';
    if plan.name.is_empty() || !plan.name.chars().all(fits) {
        return Err("name: use lower-case letters, digits and `-`".to_owned());
    }
    if plan.push && plan.sendfile {
        return Err("`push` and `sendfile` exclude each other".to_owned());
    }
    let messages = &plan.message;
    if messages.is_empty() || messages.iter().any(|bytes| !(1..=CHUNK).contains(bytes)) {
        return Err(format!(
            "message: at least one size, each from 1 to {CHUNK} bytes"
        ));
    }
    plan.web.as_ref().map_or(Ok(()), Web::check)?;
    plan.receive
        .as_ref()
        .map_or(Ok(()), ReceiveWorkload::check)?;
    let mut seen = Seen::new();
    for column in &plan.column {
        once(&mut seen, &column.name)?;
        check_column(plan, column).map_err(|why| format!("column `{}`: {why}", column.name))?;
    }
    for frames in &plan.frames {
        once(&mut seen, &frames.name)?;
        check_frames(frames).map_err(|why| format!("`{}`: {why}", frames.name))?;
    }
    if let Some(first) = plan.frames.first()
        && first.load.first() != Some(&1.0)
    {
        return Err(format!(
            "`{}`: loads are relative to the first column, so its first load must be 1",
            first.name
        ));
    }
    for file in &plan.file {
        once(&mut seen, &file.name)?;
        let sizes = 4..=1 << 18;
        if file.kb.is_empty() || !file.kb.iter().all(|kb| sizes.contains(kb) && kb % 4 == 0) {
            let why = "`kb` must be whole pages, from 4 to 262144";
            return Err(format!("`{}`: {why}", file.name));
        }
    }
    for peer in &plan.peer {
        once(&mut seen, &peer.name)?;
        check_peer(peer).map_err(|why| format!("`{}`: {why}", peer.name))?;
    }
    if let Some(idle_vms) = &plan.idle_vms {
        once(&mut seen, &idle_vms.column)?;
        if !(1..=64).contains(&idle_vms.vms) {
            return Err(format!("`{}`: 1 to 64 `vms`", idle_vms.column));
        }
    }
    check_comparisons(plan, &seen)
}

fn once<'a>(seen: &mut Seen<'a>, name: &'a str) -> Result<(), String> {
    match seen.insert(name) {
        true => Ok(()),
        false => Err(format!("column `{name}` twice")),
    }
}

fn check_column(plan: &Plan, column: &Column) -> Result<(), &'static str> {
    let is_machine = matches!(column.path, PathKind::Machine | PathKind::Local);
    if column.lro.is_some() && !is_machine {
        return Err("`lro` belongs to machine");
    }
    if column.lro.is_none() && column.rules != LroRules::Gro {
        return Err("`rules` belong to `lro`");
    }
    let guests = (&column.guests[..], &column.rivals[..]);
    let has_nic = matches!(column.nic, WireNic::Tap | WireNic::Soft);
    if column.path == PathKind::Local && (has_nic, guests) != (true, (&[1], &[0])) {
        return Err("path local needs nic tap or soft and has no guests");
    }
    if column.nic != WireNic::Tap && !is_machine {
        return Err("`nic` belongs to machine");
    }
    if column.nic != WireNic::Soft && column.machine.interrupt_us > 0 {
        return Err("`interrupt_us` belongs to nic soft");
    }
    if column.nic != WireNic::Soft && column.machine.wire_lro {
        return Err("`wire_lro` belongs to nic soft");
    }
    if column.nic != WireNic::Soft && column.machine.wire_split {
        return Err("`wire_split` belongs to nic soft");
    }
    let usual = column.machine == Mechanisms::default()
        && column.guests == [1]
        && column.flows == [1]
        && column.rivals == [0]
        && !column.own_wires
        && (column.wires == [1] || column.path == PathKind::Veth)
        && column.moderation == [PollMode::Event]
        && !column.apart;
    if !is_machine && !usual {
        return Err(
            "`machine`, `guests`, `rivals`, `flows`, `moderation` and `apart` belong to machine, \
             `wires` to machine and veth",
        );
    }
    if column.moderation.is_empty() {
        return Err("`moderation`: at least one");
    }
    if column.gro.is_some_and(Gro::at_ports) && column.path != PathKind::Bridge {
        return Err("`gro` in and in-napi belong to bridge");
    }
    let carries = matches!(column.path, PathKind::Machine | PathKind::Bridge);
    if column.offload != WireOffload::None && !(carries && column.nic == WireNic::Tap) {
        return Err("`offload` belongs to bridge, and to machine with a TAP for a wire");
    }
    if column.offload == WireOffload::Checksum && !is_machine {
        return Err("`offload`: veth pairs leave checksums to the other end in any case");
    }
    column.faults.unwrap_or_default().check()?;
    if column.path.has_vm() && (column.faults.is_some() || column.quick_ack) {
        return Err("`faults` and `quick_ack` need a guest that is not a virtual machine");
    }
    let are_of_plan = column.wire.iter().all(|wire| plan.wire.contains(wire));
    if !are_of_plan && !plan.as_thesis {
        return Err("`wire`: only speeds of the plan");
    }
    let goes_nowhere = !plan
        .direction
        .iter()
        .any(|&direction| column.runs_in(direction));
    if goes_nowhere {
        return Err("`direction`: one of the plan's");
    }
    check_counts(column)?;
    check_place(column)
}

/// Checks the numbers of guests, wires and streams.
fn check_counts(column: &Column) -> Result<(), &'static str> {
    // With an empty list, no machine would be measured.
    let are = |counts: &[u32], range: RangeInclusive<u32>| {
        !counts.is_empty() && counts.iter().all(|count| range.contains(count))
    };
    if !are(&column.rivals, 0..=16) {
        return Err("`rivals`: at most 16 guests");
    }
    if column.mixed && !are(&column.rivals, 1..=16) {
        return Err("`mixed` is about `rivals`: at least one");
    }
    if !are(&column.wires, 1..=4) {
        return Err("1 to 4 `wires`");
    }
    if column.own_wires && (!are(&column.guests, 1..=4) || column.wires != [1]) {
        return Err("`own_wires` takes the number of `wires` from that of `guests`, at most 4");
    }
    if column.own_wires && column.machine.vmq {
        return Err("`own_wires` excludes `vmq`: queues would belong to every guest");
    }
    if !are(&column.flows, 1..=64) {
        return Err("1 to 64 `flows`");
    }
    if !are(&column.guests, 1..=64) {
        return Err("`guests`: 1 to 64");
    }
    Ok(())
}

/// Checks the keys that determine where the domains run and where frames are aggregated.
fn check_place(column: &Column) -> Result<(), &'static str> {
    if column.path.has_vm() {
        return match column.place.is_empty() && column.gro.is_none() {
            true => Ok(()),
            false => Err("a path to a virtual machine has neither `place` nor `gro`"),
        };
    }
    let ours = matches!(
        column.path,
        PathKind::Machine | PathKind::Local | PathKind::Forwarder
    );
    if ours == column.place.is_empty() {
        return Err("`place` belongs to machine and forwarder");
    }
    let fits = match (column.gro, column.nic) {
        (None, _) => ours,
        (Some(_), _) if !ours => true,
        (Some(Gro::Rps), WireNic::Xdp) | (Some(Gro::Napi), WireNic::Xdp | WireNic::Tap) => {
            column.apart
        }
        _ => false,
    };
    if !fits {
        return Err(
            "`gro` belongs to bridge and veth; with `apart` also napi, and with AF_XDP rps",
        );
    }
    Ok(())
}

fn check_frames(frames: &Frames) -> Result<(), &'static str> {
    if !(1..=64).contains(&frames.guests) || !(1..=frames.guests).contains(&frames.active) {
        return Err("`guests`: 1 to 64; `active`: 1 to `guests`");
    }
    let loads = &frames.load;
    if loads.is_empty() || loads.iter().any(|load| !(0.001..=1.0).contains(load)) {
        return Err("`load`: at most 1");
    }
    let has_state = frames.stateful || frames.allow == Some(FrameRule::Established);
    if frames.flows > 8192 || has_state && frames.flows == 0 {
        return Err("`flows`: at most 8192, at least 1 with state");
    }
    let is_plain = frames.guests == 1
        && frames.load == [1.0]
        && frames.flows == 0
        && frames.from_guest.is_none()
        && frames.in_flight.is_none()
        && frames.to_guest.is_none();
    if frames.nic && !(is_plain && frames.grants == "counted") {
        return Err(
            "`nic`: one guest, counted grants, full load, and the NIC's numbers of buffers",
        );
    }
    Ok(())
}

fn check_peer(peer: &Peer) -> Result<(), &'static str> {
    if peer.size.is_empty() || !peer.size.iter().all(|size| (60..=1514).contains(size)) {
        return Err("a `size` from 60 to 1514");
    }
    Ok(())
}

fn check_comparisons(plan: &Plan, seen: &Seen<'_>) -> Result<(), String> {
    for name in plan.ratio.iter().flat_map(|r| [&r.own, &r.to]) {
        if !seen.iter().any(|column| names_column(name, column)) {
            return Err(format!("ratio: no column `{name}`"));
        }
    }
    if plan.direction.is_empty() || plan.wake.is_empty() || plan.wire.is_empty() {
        return Err("`direction`, `wake` and `wire`: at least one of each".to_owned());
    }
    for threshold in &plan.threshold {
        let metric = &threshold.metric;
        if threshold.bound().is_none() {
            return Err(format!("bar {metric}: one of at_least, at_most"));
        }
        if metric::unit(metric).is_empty() && !metric.starts_with("ratio.") {
            return Err(format!("bar: no metric `{metric}`"));
        }
    }
    Ok(())
}
