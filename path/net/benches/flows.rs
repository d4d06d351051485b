//! Cost of stateful rules: cycles of the time stamp counter per packet that the bridge forwards,
//! with 4096 flows. Each batch has packets of 64 flows. `cargo bench -p net --bench flows` prints
//! one table. The rows `full` show the slow path with a table of the default size that holds as
//! many of these flows as fit.
//!
//! All columns take turns within each round, so the machine's load affects all of them equally. The
//! result of a round is the cost of its fastest quarter of batches. A figure is the median of these
//! results. The cost of state is the median of the differences from the stateless column of the
//! same round.

use net::bridge::{Bridge, BridgeSettings, Direction, PortConfig, Rule, Verdict};
use net::flows::{FlowState, Flows};
use net::packet::{Mac, flags, protocol};
use nic::{BufferId, Frame, Piece, SmallBatch};
use shmem::{Area, time};
use std::hint::black_box;

const BATCH: usize = 64;
const FLOWS: u16 = 4096;
/// Entries of a table that holds all flows.
const ENTRIES: usize = 8192;
/// Entries of a table by default.
const DEFAULT_ENTRIES: usize = 4096;
const ROUNDS: usize = 200;
const LEN: usize = 80;

const GUEST: Mac = Mac([2, 0, 0, 0, 1, 1]);
const OTHER: Mac = Mac([2, 0, 0, 0, 1, 2]);

/// Protocol and IP version of a column's packets.
#[derive(Clone, Copy)]
struct Form {
    name: &'static str,
    protocol: u8,
    v6: bool,
}

const FORMS: [Form; 3] = [
    Form {
        name: "udp4",
        protocol: protocol::UDP,
        v6: false,
    },
    Form {
        name: "tcp4",
        protocol: protocol::TCP,
        v6: false,
    },
    Form {
        name: "tcp6",
        protocol: protocol::TCP,
        v6: true,
    },
];

/// Rules of the receiving port.
#[derive(Clone, Copy, PartialEq)]
enum Rules {
    None,
    Stateless,
    /// With a table of this many entries.
    Stateful(usize),
}

impl Form {
    /// Returns a packet of flow `n` from the guest's peer (`back`: from the guest) with these TCP
    /// flags.
    fn packet(self, n: u16, back: bool, tcp_flags: u8) -> Vec<u8> {
        let (to, from) = if back { (OTHER, GUEST) } else { (GUEST, OTHER) };
        let mut bytes = [to.0, from.0].concat();
        let ends = if back { [1u8, 2] } else { [2, 1] };
        let payload = (LEN - 14) as u16;
        if self.v6 {
            bytes.extend([0x86, 0xdd, 0x60, 0, 0, 0]);
            bytes.extend((payload - 40).to_be_bytes());
            bytes.extend([self.protocol, 64]);
            for end in ends {
                bytes.extend([0xfd, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, end]);
            }
        } else {
            bytes.extend([8, 0, 0x45, 0]);
            bytes.extend(payload.to_be_bytes());
            bytes.extend([0, 1, 0x40, 0, 64, self.protocol, 0, 0]);
            for end in ends {
                bytes.extend([10, 0, 0, end]);
            }
        }
        let port = 10_000 + n;
        let ports = if back { [port, 5000] } else { [5000, port] };
        bytes.extend(ports.map(u16::to_be_bytes).concat());
        match self.protocol {
            protocol::TCP => bytes.extend([0, 0, 0, 1, 0, 0, 0, 1, 0x50, tcp_flags, 255, 255]),
            _ => bytes.extend([0, (LEN - 34) as u8, 0, 0]),
        }
        bytes.resize(LEN, 0);
        bytes
    }

    /// Returns a bridge of two guests; the first one has these rules, which have admitted the flows
    /// for which the table has room.
    fn bridge(self, rules: Rules) -> Bridge {
        let mut bridge = Bridge::new(BridgeSettings::default());
        for (number, mac) in [(0, GUEST), (1, OTHER)] {
            bridge.add(number, &PortConfig::guest(mac)).expect("a port");
        }
        let rule = Rule {
            direction: Some(Direction::Out),
            ..Rule::any(true)
        };
        match rules {
            Rules::None => {}
            Rules::Stateless => bridge.set_rules(0, &[rule]),
            Rules::Stateful(entries) => {
                let inbound = Rule {
                    state: Some(FlowState::New),
                    allow: false,
                    ..rule
                };
                bridge.set_rules(0, &[inbound]);
                let bytes = Flows::bytes(entries);
                let memory = Area::anonymous(bytes).expect("memory").span();
                let flows = Flows::new(memory.take(bytes), 1, [3, 5], 0).expect("a table");
                bridge.set_flows(0, Some(flows));
            }
        }
        let handshake = [
            (true, flags::SYN),
            (false, flags::SYN | flags::ACK),
            (true, flags::ACK),
        ];
        for n in 0..FLOWS {
            for (back, tcp_flags) in handshake {
                let bytes = self.packet(n, back, tcp_flags);
                let _ = bridge.forward(&bytes, LEN, usize::from(!back), 1);
            }
        }
        bridge
    }
}

/// The packets of all flows, in their memory.
struct Packets(Vec<Piece>);

impl Packets {
    fn new(form: Form) -> Self {
        let area = Area::anonymous(usize::from(FLOWS) * 128).expect("memory");
        let pieces = (0..FLOWS).map(|n| {
            let span = area.at(usize::from(n) * 128, LEN).expect("memory");
            span.write(&form.packet(n, false, flags::ACK))
                .expect("memory");
            let buffer = BufferId::NONE;
            Piece { span, buffer }
        });
        Self(pieces.collect())
    }

    /// Returns the packets that a bridge forwards, in whole batches.
    fn known(form: Form, bridge: &mut Bridge) -> Self {
        let Self(mut pieces) = Self::new(form);
        let mut flows = 0..FLOWS;
        pieces.retain(|_| {
            let bytes = form.packet(flows.next().unwrap_or(0), false, flags::ACK);
            matches!(bridge.forward(&bytes, LEN, 1, 1), Verdict::Unicast(_))
        });
        pieces.truncate(pieces.len() / BATCH * BATCH);
        Self(pieces)
    }

    fn frames(&self) -> Vec<Frame> {
        let frames = self
            .0
            .iter()
            .map(|piece| Frame::new(*piece, LEN).expect("memory"));
        frames.collect()
    }
}

/// Runs one pass over all flows; returns cycles per packet of the fastest quarter of batches.
fn fastest(mut cycles: Vec<u64>) -> f64 {
    cycles.sort_unstable();
    let quarter = cycles.len() / 4;
    let sum: u64 = cycles.iter().take(quarter).sum();
    sum as f64 / (quarter * BATCH) as f64
}

/// Measures a pass by [`Bridge::forward_batch`].
fn slow_pass(bridge: &mut Bridge, frames: &mut [Frame]) -> f64 {
    let mut verdicts = Vec::with_capacity(BATCH);
    let cycles = frames.chunks_mut(BATCH).map(|batch| {
        verdicts.clear();
        let start = time::tsc();
        bridge.forward_batch(black_box(batch), 1, 1, &mut verdicts);
        black_box(&verdicts);
        time::tsc() - start
    });
    fastest(cycles.collect())
}

/// Measures a pass by [`Bridge::routes`] and [`Bridge::sent`]. As in the driver domain, a batch is
/// read immediately before, which is not measured.
fn fast_pass(bridge: &mut Bridge, packets: &Packets) -> f64 {
    let mut ports = Vec::with_capacity(BATCH);
    let mut batch = SmallBatch::default();
    let cycles = packets.0.chunks(BATCH).map(|pieces| {
        batch.clear();
        for piece in pieces {
            batch.push(piece.span).expect("memory");
        }
        let start = time::tsc();
        assert!(
            bridge.routes(black_box(&mut batch), 1, 1, &mut ports),
            "the fast path"
        );
        bridge.sent(1);
        black_box(&ports);
        time::tsc() - start
    });
    fastest(cycles.collect())
}

fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

/// Prints a row: the number of flows, medians of the columns, and the cost of state.
fn row((path, form, flows): (&str, Form, usize), rounds: &[[f64; 3]]) {
    let column = |at: usize| median(rounds.iter().map(|round| round[at]).collect());
    // The fast path takes no frame that a stateless rule concerns.
    let before = if path == "fast" { 0 } else { 1 };
    let cost = median(
        rounds
            .iter()
            .map(|round| round[2] - round[before])
            .collect(),
    );
    let stateless = match before {
        0 => "-".into(),
        _ => format!("{:.1}", column(1)),
    };
    let (none, stateful) = (column(0), column(2));
    println!(
        "{path:<6} {:<6} {flows:>6} {none:>8.1} {stateless:>10} {stateful:>10.1} {cost:>8.1}",
        form.name
    );
}

/// Measures rounds of passes of the slow path through all bridges.
fn slow_rounds(bridges: &mut [Bridge; 3], frames: &mut [Frame]) -> Vec<[f64; 3]> {
    let round = |_| bridges.each_mut().map(|bridge| slow_pass(bridge, frames));
    (0..ROUNDS).map(round).collect()
}

fn main() {
    println!("cycles per packet\n");
    println!(
        "{:<6} {:<6} {:>6} {:>8} {:>10} {:>10} {:>8}",
        "path", "frames", "flows", "no rule", "stateless", "stateful", "state"
    );
    for form in FORMS {
        let packets = Packets::new(form);
        let mut frames = packets.frames();
        let rules = [Rules::None, Rules::Stateless, Rules::Stateful(ENTRIES)];
        let mut bridges = rules.map(|rules| form.bridge(rules));
        let all = usize::from(FLOWS);
        row(("slow", form, all), &slow_rounds(&mut bridges, &mut frames));
        let rules = [
            Rules::None,
            Rules::Stateless,
            Rules::Stateful(DEFAULT_ENTRIES),
        ];
        let mut defaults = rules.map(|rules| form.bridge(rules));
        let known = Packets::known(form, &mut defaults[2]);
        let mut known = known.frames();
        let rounds = slow_rounds(&mut defaults, &mut known);
        row(("full", form, known.len()), &rounds);
        let [none, _, stateful] = &mut bridges;
        let mut fast_round = || {
            let [none, stateful] = [&mut *none, &mut *stateful].map(|it| fast_pass(it, &packets));
            [none, 0.0, stateful]
        };
        let fast: Vec<[f64; 3]> = (0..ROUNDS).map(|_| fast_round()).collect();
        row(("fast", form, all), &fast);
    }
}
