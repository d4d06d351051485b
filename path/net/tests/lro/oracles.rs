//! The case lists of others, by name, with the geometry that they expect: payload bytes of the
//! packets that come out.

use crate::packets::{Tcp, stream, timestamp};
use crate::rig::{geometry, geometry_of, wide};
use net::packet::flags::{CWR, PSH, RST, SYN, URG};

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

    /// Five packets, the third with another flag and `payload` bytes, where the others have 100.
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
        // CWR ends what was before it and stays on the first packet of what comes after.
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
        // Linux has this case for IPv4; that IPv6's hop limit is equal is our rule (LR-21).
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

    /// 16 full segments, then `rest` bytes, then `rest` bytes that do not follow.
    fn large(v6: bool, rest: usize) -> Vec<Tcp> {
        let mut packets: Vec<_> = (0..LARGE)
            .map(|n| Tcp::of(v6, (n * MSS) as u32, MSS))
            .collect();
        packets.push(Tcp::of(v6, (LARGE * MSS) as u32, rest));
        packets.push(Tcp::of(v6, ((LARGE + 1) * MSS) as u32, rest));
        packets
    }

    /// The longest payload there is, and what of it is behind the full segments.
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
