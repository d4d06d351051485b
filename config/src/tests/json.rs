//! Serialization preserves the domains' configurations.

use crate::address::MacAddress;
use crate::cable::Cable;
use crate::domain::*;
use crate::driver::{DriverSection, VifBuffers};
use crate::lro::FlushConfig;
use crate::parse::parse;
use crate::rule::{FirewallPlace, FirewallRule};
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::Value;

#[test]
fn every_kind_survives_json() {
    let stack = StackConfig {
        addresses: vec![
            "10.0.0.2/24".parse().unwrap(),
            "fd00::2/64".parse().unwrap(),
        ],
        gateway: Some("10.0.0.1".parse().unwrap()),
        apps: vec![
            StackApp::TcpSink { port: 5001 },
            StackApp::TcpEcho { port: 7 },
            StackApp::TcpSource {
                to: "10.0.0.1:5001".parse().unwrap(),
                seconds: 2,
                after_s: 1,
                file_kb: Some(64),
            },
            StackApp::TcpClient {
                to: "[fd00::1]:7".parse().unwrap(),
                size: 1,
                seconds: 2,
                after_s: 0,
            },
            StackApp::Ping {
                to: "fd00::1".parse().unwrap(),
                count: 3,
                after_s: 0,
            },
        ],
    };
    let endpoints = [
        EndpointConfig::Tap(TapQueues {
            devices: vec![0, 1],
        }),
        EndpointConfig::Stack {
            station: stack.clone(),
        },
        EndpointConfig::Sink { touch: true },
        EndpointConfig::Source(Source {
            to: MacAddress([2; 6]),
            size: 60,
            rate_pps: Some(1e6),
            window: 32,
            count: None,
            touch: false,
            flows: 0,
        }),
        EndpointConfig::Echo {},
        EndpointConfig::VhostUser(VhostConfig {
            device: 3,
            client: true,
            queue_pairs: 2,
            memory_max: 1 << 40,
        }),
        EndpointConfig::Pcap(CaptureSpec {
            read: Some(1),
            write: None,
            write_mib: 1,
        }),
    ];
    let guest = GuestConfig {
        vifs: endpoints
            .into_iter()
            .zip(0..)
            .map(|(endpoint, conn)| GuestVif {
                conns: vec![2 * conn, 2 * conn + 1],
                mac: [2, 0, 0, 0, 0, 1],
                mtu: 1500,
                endpoint,
                ring_order: 2,
                ring_format: RingFormat::Native,
                buffers: VifBuffers {
                    size: BufferSize::Half,
                    to_guest: 256,
                    spare: 64,
                    release_threshold: Some(16),
                    prefetch: 8,
                    ..VifBuffers::default()
                },
                pool_pages: 256,
                offloads: Offloads::Tso,
                forwards: true,
                rx_pool: (conn > 0).then_some(11),
                file_pages: 3,
            })
            .collect(),
        spin_us: 0,
        yields: false,
        adapts: true,
        ledger: true,
        lro: LroConfig::default(),
    };
    let text = serde_json::to_string(&guest).unwrap();
    assert_eq!(serde_json::from_str::<GuestConfig>(&text).unwrap(), guest);

    let cable = CableConfig {
        mac: [2; 6],
        cable: Cable {
            delay_us: 10,
            loss: 0.5,
            seed: 1,
            station: stack,
        },
    };
    let kinds = [
        NicKindConfig::Tap {
            device: 0,
            vnet_header: true,
            checksum: false,
            tso: true,
            queues: vec![1, 2],
        },
        NicKindConfig::Xdp {
            device: 4,
            rings_slot: 8,
            entries: 1024,
        },
        NicKindConfig::Sim(cable.clone()),
        NicKindConfig::Soft {
            cable,
            rings: Rings {
                descriptors: 1024,
                interrupt_us: 50,
                interrupt_frames: 32,
            },
        },
        NicKindConfig::Device {
            conn: 1,
            descriptors: 256,
            queues: 2,
            merges: true,
            splits: true,
        },
        NicKindConfig::Pcap(CaptureSpec {
            read: Some(1),
            write: Some(2),
            write_mib: 5,
        }),
        NicKindConfig::Local {
            device: 3,
            mac: [2; 6],
        },
    ];
    let moderations = [
        ModerationConfig::Spin,
        ModerationConfig::Tick(50),
        ModerationConfig::Event,
        ModerationConfig::Event,
        ModerationConfig::Event,
        ModerationConfig::Event,
    ];
    let driver = DriverConfig {
        nics: kinds
            .into_iter()
            .zip(moderations)
            .map(|(kind, moderation)| NicConfig {
                name: "wire".into(),
                kind,
                settings: NicSettings {
                    mtu: 1500,
                    rate_mbps: Some(1000.0),
                    burst_bytes: 65536,
                    moderation,
                    buffers: 1024,
                    vmq: Some(VmqConfig {
                        queues: 2,
                        rebalance_ms: 100,
                    }),
                    rules: vec![FirewallRule::any("1", true)],
                },
                addresses: vec!["10.0.0.1".parse().unwrap()],
                gateways: vec!["10.0.0.254".parse().unwrap()],
            })
            .collect(),
        vifs: vec![VifConfig {
            conn: 0,
            name: "g-0".into(),
            mac: [2; 6],
            guard: PortGuard {
                extra_macs: vec![MacAddress([4; 6])],
                addresses: vec!["fd00::2".parse().unwrap()],
                gateways: vec!["fd00::1".parse().unwrap()],
                confined: true,
                sources: Some(vec!["10.0.0.0/8".parse().unwrap()]),
                dhcp_server: true,
            },
            settings: PortSettings {
                rate_mbps: None,
                burst_bytes: 9000,
                weight: 1,
                forwards: false,
                rules: vec![FirewallRule::any("all", false)],
                firewall: FirewallPlace::Shared,
            },
            announces: false,
            to_guest: Some(FrameLimit {
                rate_mbps: 0.5,
                burst_bytes: 1,
            }),
            first_slot: 0,
            slots: 1024,
            tables_slot: 1024,
            flip_pages: 0,
            staging_pages: 0,
            device_queue: Some(DeviceQueueConfig {
                nic: 2,
                queue: 1,
                conn: 0,
                first_slot: 900,
                buffers: 512,
            }),
            queue: Some(DedicatedQueueConfig {
                nic: 0,
                device: 3,
                rings_slot: 9,
                entries: 512,
                chunk_bytes: BUFFER_BYTES,
                first_frame: 11,
                frames: 256,
            }),
        }],
        driver: DriverSection {
            grants: GrantMode::Persistent,
            offloads: Offloads::Checksum,
            spin_us: Some(50),
            broadcast_pps: 1000,
            mac_ageing_s: 300,
            flows: 4096,
            flow_tables: 2,
            ledger: false,
            ..DriverSection::default()
        },
        ring_order: 0,
        ring_format: RingFormat::Xen,
        reports_to_all: true,
        yields: true,
        adapts: false,
        notify_us: 300,
        lro: LroConfig {
            flush: FlushConfig::After(20),
            ..LroConfig::default()
        },
    };
    let text = serde_json::to_string(&driver).unwrap();
    assert_eq!(serde_json::from_str::<DriverConfig>(&text).unwrap(), driver);
}

/// serde does not promise this for structures with flattened fields.
#[test]
fn unknown_fields_are_rejected() {
    let text = "[[nic]]\nname = \"n\"\nkind = \"local\"\n[[guest]]\nname = \"g\"\n\
                [[guest.vif]]\nendpoint = \"echo\"\n";
    let machine = parse("f", text).unwrap().machine().unwrap();
    let driver: Value = serde_json::from_str(&machine.domains[0].config).unwrap();
    serde_json::from_value::<DriverConfig>(driver.clone()).unwrap();
    for (place, key) in [
        ("", "quarantine"),
        // The program does not read these keys of `[driver]`.
        ("", "cpus"),
        ("", "workers"),
        ("", "restart"),
        ("", "restart_pause_ms"),
        ("/nics/0", "quarantine"),
        ("/nics/0/kind", "quarantine"),
        ("/vifs/0", "quarantine"),
    ] {
        let mut changed = driver.clone();
        changed.pointer_mut(place).unwrap()[key] = Value::from(1);
        let wrong = serde_json::from_value::<DriverConfig>(changed).unwrap_err();
        let unknown = format!("unknown field `{key}`");
        assert!(wrong.to_string().starts_with(&unknown), "{wrong}");
    }
    assert!(
        serde_json::from_str::<EndpointConfig>(r#"{"kind":"sink","touch":true,"speed":1}"#)
            .is_err()
    );
    assert!(serde_json::from_str::<EndpointConfig>(r#"{"kind":"sink","touch":true}"#).is_ok());
}

/// A driver domain may be newer than the manager, so it must accept the configurations of older
/// managers. This text is an interface as the first version with that guarantee wrote it. Later
/// versions must read it with the same meaning.
#[test]
fn an_older_managers_interface_is_accepted() {
    let text = r#"{"conn":3,"name":"g-0","mac":[2,0,0,0,0,1],"addresses":["10.0.0.2"],
        "rate_mbps":null,"weight":1,"first_slot":0,"slots":1024,"tables_slot":1024,
        "flip_pages":0,"staging_pages":0,"forwards":false}"#;
    let vif: VifConfig = serde_json::from_str(text).unwrap();
    let same = VifConfig {
        guard: PortGuard {
            addresses: vec!["10.0.0.2".parse().unwrap()],
            ..PortGuard::default()
        },
        slots: 1024,
        tables_slot: 1024,
        ..VifConfig::new(3, "g-0".into(), [2, 0, 0, 0, 0, 1])
    };
    assert_eq!(vif, same);
}

/// The next manager and programs that start later read the texts of an earlier version, so the
/// names of keys do not change with the structure of the types.
#[test]
fn the_texts_of_an_earlier_version_are_read_and_written() {
    fn check<T: Serialize + DeserializeOwned>(text: &str) {
        let value: Value = serde_json::from_str(text).unwrap();
        let read: T = serde_json::from_str(text).unwrap();
        assert_eq!(serde_json::to_value(read).unwrap(), value);
    }
    check::<NicConfig>(
        r#"{"name":"wire","kind":{"kind":"sim","delay_us":20,"loss":0.5,"seed":1,
        "mac":[2,0,0,0,0,1],"far":{"addresses":["10.0.0.1/24"],"gateway":null,"apps":[]}},
        "mtu":1500,"rate_mbps":100.0,"burst_bytes":65536,"moderation":{"tick":50},"buffers":1024,
        "addresses":["10.0.0.1"],"vmq":{"queues":8,"rebalance_ms":100}}"#,
    );
    check::<GuestVif>(
        r#"{"conns":[0],"mac":[2,0,0,0,0,2],"mtu":1500,"endpoint":{"kind":"tap","devices":[0]},
        "ring_order":2,"ring_format":"native","buffers":"full","pool_pages":384,
        "to_guest_buffers":500,"spare_buffers":7,"release_threshold":3,"prefetch":4,
        "offloads":"tso","forwards":true}"#,
    );
    check::<EndpointConfig>(
        r#"{"kind":"vhost-user","device":3,"client":true,"queue_pairs":2,"memory_max":9}"#,
    );
    check::<EndpointConfig>(r#"{"kind":"pcap","read":1,"write":null,"write_mib":5}"#);
}
