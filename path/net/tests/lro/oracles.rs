//! Test cases of other implementations, under their names, with the geometry that they expect: the
//! payload bytes of each output packet.

use crate::packets::{Tcp, stream, timestamp};
use crate::rig::{geometry, geometry_of, wide};
use net::packet::flags::{ACK, CWR, ECE, FIN, PSH, RST, SYN, URG};

/// Linux's `tools/testing/selftests/net/gro.c`. LR-10.
mod linux {
    use super::*;

    const MSS: usize = 4096 - 20 - 40;
    const LARGE: usize = 16;

    /// Both IP versions.
    fn both(packets: impl Fn(bool) -> Vec<Tcp>, expected: &[usize]) {
        for v6 in [false, true] {
            assert_eq!(geometry(wide(), &packets(v6)), expected, "v6: {v6}");
        }
    }

    fn two(v6: bool, first: usize, second: usize) -> Vec<Tcp> {
        vec![Tcp::of(v6, 0, first), Tcp::of(v6, first as u32, second)]
    }

    fn second(v6: bool, change: impl FnOnce(&mut Tcp)) -> Vec<Tcp> {
        let mut packets = two(v6, 100, 100);
        change(&mut packets[1]);
        packets
    }

    #[test]
    fn data_same() {
        both(|v6| two(v6, 100, 100), &[200]);
    }

    #[test]
    fn data_lrg_sml() {
        both(|v6| two(v6, 100, 50), &[150]);
    }

    #[test]
    fn data_sml_lrg() {
        both(|v6| two(v6, 50, 100), &[50, 100]);
    }

    #[test]
    fn ack() {
        let acks = |v6| {
            vec![
                Tcp::of(v6, 0, 0),
                Tcp::of(v6, 0, 0),
                Tcp::of(v6, 0, 0).with(|p| p.acknowledgement += 1),
            ]
        };
        both(acks, &[0, 0, 0]);
    }

    /// Five packets of 100 bytes, except that the third has another flag and `payload` bytes.
    fn flag(v6: bool, flag: u8, payload: usize) -> Vec<Tcp> {
        (0..5)
            .map(|n| match n {
                2 => Tcp::of(v6, 2 * payload as u32, payload).with(|p| p.flags |= flag),
                _ => Tcp::of(v6, n * 100, 100),
            })
            .collect()
    }

    #[test]
    fn flags_psh() {
        both(|v6| flag(v6, PSH, 100), &[300, 200]);
    }

    #[test]
    fn flags_syn() {
        both(|v6| flag(v6, SYN, 0), &[200, 0, 200]);
    }

    #[test]
    fn flags_rst() {
        both(|v6| flag(v6, RST, 0), &[200, 0, 200]);
    }

    #[test]
    fn flags_urg() {
        both(|v6| flag(v6, URG, 0), &[200, 0, 200]);
    }

    #[test]
    fn flags_cwr() {
        // CWR ends the aggregate before it and stays on the first packet of the next one.
        both(|v6| flag(v6, CWR, 100), &[200, 300]);
    }

    #[test]
    fn tcp_csum() {
        for v6 in [false, true] {
            let mut packets: Vec<_> = two(v6, 100, 100).iter().map(Tcp::bytes).collect();
            let at = Tcp::of(v6, 0, 0).tcp_at() + 16;
            packets[1][at] ^= 1;
            assert_eq!(geometry_of(wide(), &packets), [100, 100]);
        }
    }

    #[test]
    fn tcp_seq() {
        both(|v6| second(v6, |p| p.sequence += 1), &[100, 100]);
    }

    #[test]
    fn tcp_ts() {
        let order = |n: usize, value: u32| {
            let option = timestamp(value, 0);
            let (nops, option) = option.split_at(2);
            match n {
                0 => [nops, option].concat(),
                1 => [&nops[..1], option, &nops[1..]].concat(),
                _ => [option, nops].concat(),
            }
        };
        let options = [
            order(0, 0),
            order(0, 0),
            order(0, 100),
            order(1, 100),
            order(2, 100),
        ];
        let packets = |v6| {
            let packets = (0..).map(|n| Tcp::of(v6, n * 100, 100));
            packets
                .zip(&options)
                .map(|(packet, options)| packet.with(|p| p.options.clone_from(options)))
                .collect()
        };
        both(packets, &[200, 100, 100, 100]);
    }

    #[test]
    fn tcp_opt() {
        let packets = |v6| {
            let options = [timestamp(0, 0), timestamp(0, 0), vec![1, 3, 3, 0]];
            let packets = (0..).map(|n| Tcp::of(v6, n * 100, 100));
            packets
                .zip(options)
                .map(|(packet, options)| packet.with(|p| p.options = options))
                .collect()
        };
        both(packets, &[200, 100]);
    }

    #[test]
    fn ip_ecn() {
        both(|v6| second(v6, |p| p.tos ^= 2), &[100, 100]);
    }

    #[test]
    fn ip_tos() {
        both(|v6| second(v6, |p| p.tos = 0xf0), &[100, 100]);
    }

    #[test]
    fn ip_ttl() {
        // Linux has this case for IPv4; equality of IPv6's hop limit is our rule (LR-21).
        both(|v6| second(v6, |p| p.ttl = 7), &[100, 100]);
    }

    #[test]
    fn ip_opt() {
        let mut packets = stream(false, 3, 100);
        packets[1].ip_options = vec![68, 8, 5, 0, 0, 0, 0, 0];
        assert_eq!(geometry(wide(), &packets), [100, 100, 100]);
    }

    #[test]
    fn ip_frag4() {
        let mut packets = two(false, 100, 100);
        packets[1].fragment = 0x6000;
        assert_eq!(geometry(wide(), &packets), [100, 100]);
    }

    #[test]
    fn ip_frag6() {
        let mut packets = stream(true, 4, 100);
        packets[2].extensions = vec![(44, vec![0; 6])];
        assert_eq!(geometry(wide(), &packets), [200, 100, 100]);
    }

    #[test]
    fn ip_v6ext_same() {
        let mut packets = stream(true, 2, 100);
        packets[0].extensions = vec![(0, vec![0; 6])];
        packets[1].extensions = vec![(0, vec![0; 6])];
        assert_eq!(geometry(wide(), &packets), [200]);
    }

    #[test]
    fn ip_v6ext_diff() {
        let mut packets = stream(true, 2, 100);
        packets[0].extensions = vec![(0, vec![0; 6])];
        packets[1].extensions = vec![(0, vec![0x11; 6])];
        assert_eq!(geometry(wide(), &packets), [100, 100]);
    }

    fn ids(fragment: u16, ids: &[u16]) -> Vec<usize> {
        let packets = (0..).map(|n| Tcp::v4(n * 100, 100));
        let packets: Vec<_> = packets
            .zip(ids)
            .map(|(packet, &id)| {
                packet.with(|p| {
                    p.id = id;
                    p.fragment = fragment;
                })
            })
            .collect();
        geometry(wide(), &packets)
    }

    #[test]
    fn ip_id_df1_inc() {
        assert_eq!(ids(0x4000, &[8, 9]), [200]);
    }

    #[test]
    fn ip_id_df1_fixed() {
        assert_eq!(ids(0x4000, &[8, 8]), [200]);
    }

    #[test]
    fn ip_id_df0_inc() {
        assert_eq!(ids(0, &[8, 9]), [200]);
    }

    #[test]
    fn ip_id_df0_fixed() {
        assert_eq!(ids(0, &[8, 8]), [200]);
    }

    #[test]
    fn ip_id_df1_inc_fixed() {
        assert_eq!(ids(0x4000, &[8, 9, 9]), [200, 100]);
    }

    #[test]
    fn ip_id_df1_fixed_inc() {
        assert_eq!(ids(0x4000, &[8, 8, 9]), [200, 100]);
    }

    /// Returns 16 full segments, a segment of `rest` bytes, and another segment of `rest` bytes one
    /// MSS after the start of the previous one.
    fn large(v6: bool, rest: usize) -> Vec<Tcp> {
        let mut packets: Vec<_> = (0..LARGE)
            .map(|n| Tcp::of(v6, (n * MSS) as u32, MSS))
            .collect();
        packets.push(Tcp::of(v6, (LARGE * MSS) as u32, rest));
        packets.push(Tcp::of(v6, ((LARGE + 1) * MSS) as u32, rest));
        packets
    }

    /// Returns the longest possible payload, and its part behind the full segments.
    fn most(v6: bool) -> (usize, usize) {
        let most = 65_535 - if v6 { 60 } else { 40 };
        (most, most - LARGE * MSS)
    }

    #[test]
    fn large_max() {
        for v6 in [false, true] {
            let (most, rest) = most(v6);
            assert_eq!(geometry(wide(), &large(v6, rest)), [most, rest]);
        }
    }

    #[test]
    fn large_rem() {
        for v6 in [false, true] {
            let (most, rest) = most(v6);
            let expected = [most - rest, rest + 1, rest + 1];
            assert_eq!(geometry(wide(), &large(v6, rest + 1)), expected);
        }
    }
}

/// wireguard-go's `tun/offload_linux_test.go`, the TCP part of its cases. LR-10.
mod wireguard_go {
    use super::*;

    fn two(v6: bool, change: impl FnOnce(&mut Tcp)) -> Vec<usize> {
        let mut packets = stream(v6, 2, 100);
        change(&mut packets[1]);
        geometry(wide(), &packets)
    }

    #[test]
    fn multiple_flows() {
        let to_c = |packet: Tcp| packet.with(|p| p.host = 3);
        let packets = [
            Tcp::v4(1, 100),
            Tcp::v4(101, 100),
            to_c(Tcp::v4(201, 100)),
            Tcp::of(true, 1, 100),
            Tcp::of(true, 101, 100),
            to_c(Tcp::of(true, 201, 100)),
        ];
        assert_eq!(geometry(wide(), &packets), [200, 100, 200, 100]);
    }

    #[test]
    fn psh_interleaved() {
        let flow = |v6| stream(v6, 4, 100).into_iter();
        let mut packets: Vec<_> = flow(false).chain(flow(true)).collect();
        packets[1].flags |= PSH;
        packets[5].flags |= PSH;
        let mut sizes = geometry(wide(), &packets);
        sizes.sort_unstable();
        assert_eq!(sizes, [200, 200, 200, 200]);
    }

    #[test]
    fn coalesce_item_invalid_csum() {
        let mut packets: Vec<_> = stream(false, 3, 100).iter().map(Tcp::bytes).collect();
        packets[0][50] ^= 0xff;
        packets[0][51] ^= 0xff;
        assert_eq!(geometry_of(wide(), &packets), [100, 200]);
    }

    #[test]
    fn out_of_order() {
        // wireguard-go prepends the second packet and merges all. Linux and this engine do not
        // reorder (LR-20).
        let packets = [101, 1, 201].map(|sequence| Tcp::v4(sequence, 100));
        assert_eq!(geometry(wide(), &packets), [100, 100, 100]);
    }

    #[test]
    fn unequal_ttl() {
        assert_eq!(two(false, |p| p.ttl += 1), [100, 100]);
    }

    #[test]
    fn unequal_tos() {
        assert_eq!(two(false, |p| p.tos += 1), [100, 100]);
    }

    #[test]
    fn unequal_flags_more_fragments_set() {
        assert_eq!(two(false, |p| p.fragment |= 0x2000), [100, 100]);
    }

    #[test]
    fn unequal_flags_df_set() {
        assert_eq!(two(false, |p| p.fragment ^= 0x4000), [100, 100]);
    }

    #[test]
    fn ipv6_unequal_hop_limit() {
        assert_eq!(two(true, |p| p.ttl += 1), [100, 100]);
    }

    #[test]
    fn ipv6_unequal_traffic_class() {
        assert_eq!(two(true, |p| p.tos += 1), [100, 100]);
    }
}

/// LR-10: the examples and exceptions of receive segment coalescing (RSC) in Windows that agree
/// with the rules.
mod rsc {
    use super::*;

    fn acks(count: usize, windows: bool) -> Vec<Tcp> {
        (0..count)
            .map(|n| Tcp::v4(1500, 0).with(|p| p.window -= if windows { n as u16 + 1 } else { 0 }))
            .collect()
    }

    #[test]
    fn ten_data_packets_become_one() {
        assert_eq!(geometry(wide(), &stream(false, 10, 100)), [1000]);
    }

    #[test]
    fn five_data_a_duplicate_ack_and_two_data_are_three() {
        let mut packets = stream(false, 7, 100);
        packets.splice(5..5, acks(1, false));
        assert_eq!(geometry(wide(), &packets), [500, 0, 200]);
    }

    #[test]
    fn window_updates_are_not_merged_as_rsc_merges_them() {
        let packets = [stream(false, 5, 100), acks(2, true)].concat();
        assert_eq!(geometry(wide(), &packets), [500, 0, 0]);
    }

    /// Exceptions that Linux's cases do not cover.
    #[test]
    fn exceptions() {
        let with = |change: &dyn Fn(&mut Tcp)| {
            let mut packets = stream(false, 3, 100);
            change(&mut packets[1]);
            geometry(wide(), &packets)
        };
        assert_eq!(with(&|p| p.flags |= URG), [100, 100, 100]);
        assert_eq!(with(&|p| p.flags |= SYN), [100, 100, 100]);
        assert_eq!(with(&|p| p.flags |= RST), [100, 100, 100]);
        assert_eq!(with(&|p| p.options = vec![1, 1, 1, 1]), [100, 100, 100]);
        assert_eq!(with(&|p| p.flags |= ECE), [100, 100, 100]);
        // "Over the maximum: restart", and so does a change of CWR.
        assert_eq!(with(&|p| p.flags |= CWR), [100, 200]);
    }
}

/// `inet_lro`, which the papers used. LR-30.
mod inet_lro {
    use super::*;
    use crate::rig::{run, wide as settings};
    use net::lro::{MergeRules, Psh, Settings};
    use nic::Frame;

    fn lro() -> Settings {
        Settings {
            rules: MergeRules::Lro,
            psh: Psh::Merge,
            ..settings()
        }
    }

    /// Returns three segments with the second one changed; sequence numbers stay consecutive.
    fn second(change: impl FnOnce(&mut Tcp)) -> Vec<Frame> {
        packets_with(change, lro())
    }

    fn packets_with(change: impl FnOnce(&mut Tcp), settings: Settings) -> Vec<Frame> {
        let mut packets = stream(false, 3, 100);
        for packet in &mut packets {
            packet.options = timestamp(10, 5);
        }
        change(&mut packets[1]);
        packets[2].sequence = packets[1].sequence + packets[1].payload.len() as u32;
        let frames = packets
            .iter()
            .map(|packet| crate::common::frame_of(&packet.bytes(), &[]))
            .collect();
        run(settings, frames).0
    }

    fn sizes(change: impl FnOnce(&mut Tcp)) -> Vec<usize> {
        crate::rig::payloads(&second(change))
    }

    const UNMERGED: [usize; 3] = [100, 100, 100];
    const ONE: [usize; 1] = [300];

    #[test]
    fn psh_is_not_looked_at() {
        let out = second(|p| p.flags |= PSH);
        assert_eq!(crate::rig::payloads(&out), ONE);
        assert_eq!(out[0].header()[47], ACK | PSH);
    }

    #[test]
    fn psh_ends_an_aggregate_if_configured() {
        let flush = Settings {
            psh: Psh::Flush,
            ..lro()
        };
        let out = packets_with(|p| p.flags |= PSH, flush);
        assert_eq!(crate::rig::payloads(&out), [200, 100]);
    }

    #[test]
    fn flags_that_are_never_merged() {
        for flag in [CWR, ECE, URG, RST, SYN, FIN] {
            assert_eq!(sizes(|p| p.flags |= flag), UNMERGED, "{flag:#x}");
        }
        assert_eq!(sizes(|p| p.flags = PSH), UNMERGED, "no ACK");
    }

    #[test]
    fn a_packet_that_is_marked_is_not_merged() {
        assert_eq!(sizes(|p| p.tos = 3), UNMERGED);
        assert_eq!(sizes(|p| p.tos = 2), ONE);
    }

    #[test]
    fn ip_options_and_empty_packets_are_not_merged() {
        assert_eq!(sizes(|p| p.ip_options = vec![1; 4]), UNMERGED);
        assert_eq!(sizes(|p| p.payload.clear()), [100, 0, 100]);
        assert_eq!(sizes(|p| p.fragment = 0x2000), UNMERGED);
    }

    #[test]
    fn the_only_option_is_an_aligned_timestamp() {
        assert_eq!(sizes(|p| p.options = vec![1; 12]), UNMERGED);
        assert_eq!(
            sizes(|p| p.options = [&timestamp(10, 5)[2..], &[1, 1]].concat()),
            UNMERGED
        );
        assert_eq!(
            sizes(|p| p.options = [timestamp(10, 5), vec![1; 4]].concat()),
            UNMERGED
        );
        assert_eq!(sizes(|p| p.options = timestamp(10, 0)), UNMERGED);
    }

    #[test]
    fn timestamps_do_not_go_back_behind_the_first() {
        let out = second(|p| p.options = timestamp(11, 9));
        assert_eq!(crate::rig::payloads(&out), ONE);
        // The timestamp value of the first packet (PAWS), and the echo of the last one.
        assert_eq!(out[0].header()[54..66], timestamp(10, 5));
        assert_eq!(sizes(|p| p.options = timestamp(9, 5)), [100, 200]);
    }

    #[test]
    fn the_last_echo_ack_and_window_are_sent() {
        let mut packets = stream(false, 2, 100);
        packets[0].options = timestamp(10, 5);
        packets[1].options = timestamp(12, 7);
        packets[1].acknowledgement += 50;
        packets[1].window = 77;
        let frames = packets
            .iter()
            .map(|packet| crate::common::frame_of(&packet.bytes(), &[]))
            .collect();
        let (out, _) = run(lro(), frames);
        let header = out[0].header();
        assert_eq!(header[42..46], 150u32.to_be_bytes());
        assert_eq!(header[48..50], 77u16.to_be_bytes());
        assert_eq!(header[54..66], timestamp(10, 7));
    }

    #[test]
    fn acknowledgement_numbers_may_only_advance() {
        assert_eq!(sizes(|p| p.acknowledgement -= 1), [100, 200]);
        assert_eq!(sizes(|p| p.acknowledgement += 1), [200, 100]);
        let advancing = |p: &mut Tcp| p.window = 1;
        assert_eq!(sizes(advancing), ONE);
    }

    #[test]
    fn sequence_numbers_are_consecutive() {
        assert_eq!(sizes(|p| p.sequence += 1), [100, 200]);
    }

    #[test]
    fn longest_segment_sets_the_segment_size() {
        let out = second(|p| p.payload = vec![7; 150]);
        assert_eq!(crate::rig::payloads(&out), [350]);
        assert_eq!(out[0].offload.gso.unwrap().size, 150);
        assert_eq!(sizes(|p| p.payload = vec![7; 50]), [250]);
    }

    #[test]
    fn identification_ttl_and_df_are_not_looked_at() {
        assert_eq!(sizes(|p| p.id = 999), ONE);
        assert_eq!(sizes(|p| p.ttl = 1), ONE);
        assert_eq!(sizes(|p| p.fragment = 0), ONE);
    }

    #[test]
    fn a_cap_on_segments_and_64_kb_end_an_aggregate() {
        let capped = Settings {
            segments: 2,
            ..lro()
        };
        let out = packets_with(|_| {}, capped);
        assert_eq!(crate::rig::payloads(&out), [200, 100]);
        let frames = stream(false, 46, 1460)
            .iter()
            .map(|packet| crate::common::frame_of(&packet.bytes(), &[]))
            .collect();
        let (out, _) = run(lro(), frames);
        assert_eq!(crate::rig::payloads(&out), [44 * 1460, 2 * 1460]);
    }
}
