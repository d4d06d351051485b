//! Checks [`DriverQueue`], [`DeviceQueue`] and [`QueueInterrupt`] in every order of events with
//! loom: `RUSTFLAGS="--cfg loom" cargo test -p nic --lib model`. [`Memory`] has the same memory
//! orderings as [`crate::dma::layout`].

use super::interrupt::QueueInterrupt;
use crate::dma::addr::IoAddr;
use crate::dma::layout::{
    COMPLETION_WORDS, Completion, DESCRIPTOR_WORDS, Descriptor, DeviceMemory, DriverMemory,
};
use crate::dma::queue::{DeviceQueue, DriverQueue, QueueName};
use loom::sync::Arc;
use loom::sync::atomic::{AtomicU32, Ordering};
use loom::thread;
use shmem::Fault;

/// Entries of the queue.
const ENTRIES: u32 = 2;
/// The word of a descriptor with the buffer's length.
const LEN: usize = 4;

/// The memory of a queue in loom's memory. Of each descriptor it keeps the length, of each
/// completion the index and the length; all other words are 0.
#[derive(Clone)]
struct Memory(Arc<Words>);

#[derive(Default)]
struct Words {
    posted: AtomicU32,
    completed: AtomicU32,
    acknowledged: AtomicU32,
    wake: AtomicU32,
    raised: AtomicU32,
    descriptors: [AtomicU32; ENTRIES as usize],
    completions: [[AtomicU32; 2]; ENTRIES as usize],
}

impl DriverMemory for Memory {
    fn set_descriptor(&self, slot: u32, words: [u32; DESCRIPTOR_WORDS]) -> Result<(), Fault> {
        self.0.descriptors[slot as usize].store(words[LEN], Ordering::Relaxed);
        Ok(())
    }

    fn set_posted(&self, index: u32) -> Result<(), Fault> {
        self.0.posted.store(index, Ordering::Release);
        Ok(())
    }

    fn completed(&self) -> Result<u32, Fault> {
        Ok(self.0.completed.load(Ordering::Acquire))
    }

    fn completion(&self, slot: u32) -> Result<[u32; COMPLETION_WORDS], Fault> {
        let [index, len] = &self.0.completions[slot as usize];
        let load = |word: &AtomicU32| word.load(Ordering::Relaxed);
        Ok([load(index), load(len), 0, 0])
    }

    fn set_acknowledged(&self, index: u32) -> Result<(), Fault> {
        self.0.acknowledged.store(index, Ordering::Release);
        Ok(())
    }

    fn wake(&self) -> Result<u32, Fault> {
        Ok(self.0.wake.load(Ordering::Relaxed))
    }

    fn raised(&self) -> Result<u32, Fault> {
        Ok(self.0.raised.load(Ordering::Acquire))
    }
}

impl DeviceMemory for Memory {
    fn posted(&self) -> Result<u32, Fault> {
        Ok(self.0.posted.load(Ordering::Acquire))
    }

    fn descriptor(&self, slot: u32) -> Result<[u32; DESCRIPTOR_WORDS], Fault> {
        let mut words = [0; DESCRIPTOR_WORDS];
        words[LEN] = self.0.descriptors[slot as usize].load(Ordering::Relaxed);
        Ok(words)
    }

    fn set_completion(&self, slot: u32, words: [u32; COMPLETION_WORDS]) -> Result<(), Fault> {
        for (word, value) in self.0.completions[slot as usize].iter().zip(words) {
            word.store(value, Ordering::Relaxed);
        }
        Ok(())
    }

    fn set_completed(&self, index: u32) -> Result<(), Fault> {
        self.0.completed.store(index, Ordering::Release);
        Ok(())
    }

    fn acknowledged(&self) -> Result<u32, Fault> {
        Ok(self.0.acknowledged.load(Ordering::Acquire))
    }

    fn set_wake(&self, index: u32) -> Result<(), Fault> {
        self.0.wake.store(index, Ordering::Release);
        Ok(())
    }

    fn set_raised(&self, interrupts: u32) -> Result<(), Fault> {
        self.0.raised.store(interrupts, Ordering::Release);
        Ok(())
    }
}

/// A driver and a device with a queue between them.
struct Rig {
    memory: Memory,
    driver: DriverQueue<Memory, u32>,
    device: DeviceQueue,
}

impl Rig {
    fn new() -> Self {
        let memory = Memory(Arc::default());
        Self {
            driver: DriverQueue::new(QueueName::Receive(0), memory.clone(), ENTRIES, 0),
            device: DeviceQueue::new(ENTRIES, 0),
            memory,
        }
    }

    /// Posts and publishes a buffer of `len` bytes.
    fn post(&mut self, len: u32) {
        post(&mut self.driver, len);
        self.driver.publish().expect("accessible memory");
    }
}

fn post(driver: &mut DriverQueue<Memory, u32>, len: u32) {
    let descriptor = Descriptor {
        address: IoAddr::of_page(0),
        len,
        header: None,
        checksum: None,
    };
    driver.post(len, descriptor).expect("a free entry");
}

/// Fills the next posted buffer, if any, and returns whether there was one.
fn complete(device: &mut DeviceQueue, memory: &Memory) -> bool {
    let posted = device.peek(memory).expect("accessible memory");
    let Some(Descriptor { len, .. }) = posted else {
        return false;
    };
    assert!(len > 0, "a descriptor that was not written");
    let completion = Completion {
        len,
        ..Completion::default()
    };
    device
        .complete(memory, completion)
        .expect("accessible memory");
    true
}

/// D-7, D-9: a device that sees `posted` sees the descriptors before it, and a driver that sees
/// `completed` sees the completions before it.
#[test]
fn queue_entries_are_visible_with_their_index() {
    loom::model(|| {
        let Rig {
            memory,
            mut driver,
            mut device,
        } = Rig::new();
        let other = thread::spawn(move || {
            while complete(&mut device, &memory) {}
            device.publish(&memory).expect("accessible memory");
        });
        for len in 1..=ENTRIES {
            post(&mut driver, len);
            driver.publish().expect("accessible memory");
        }
        while let Some((len, _, completion)) = driver.take().expect("an honest device") {
            assert_eq!(completion.len, len);
        }
        other.join().expect("the device");
    });
}

/// D-25: a device that is about to sleep sees a new descriptor, or the driver wakes it.
#[test]
fn no_wake_up_of_the_device_is_lost() {
    loom::model(|| {
        let mut rig = Rig::new();
        rig.post(1);
        assert!(complete(&mut rig.device, &rig.memory));
        let _ = rig.driver.needs_wakeup().expect("accessible memory");
        let Rig {
            memory,
            mut driver,
            device,
        } = rig;
        let other = thread::spawn(move || !device.arm(&memory, true).expect("accessible memory"));
        post(&mut driver, 2);
        driver.publish().expect("accessible memory");
        let wakes = driver.needs_wakeup().expect("accessible memory");
        let sleeps = other.join().expect("the device");
        assert!(!sleeps || wakes, "asleep without a doorbell");
    });
}

/// D-24, D-38: a driver that has taken a completion and is about to sleep sees the next one, or the
/// device raises the interrupt. With the interrupt the driver sees the completion.
#[test]
fn no_interrupt_of_a_queue_is_lost() {
    loom::model(|| {
        let mut rig = Rig::new();
        rig.post(1);
        rig.post(2);
        let mut interrupt = QueueInterrupt::default();
        assert!(complete_and_raise(
            &mut rig.device,
            &mut interrupt,
            &rig.memory
        ));
        let Rig {
            memory,
            mut driver,
            mut device,
        } = rig;
        let other = thread::spawn(move || complete_and_raise(&mut device, &mut interrupt, &memory));
        assert!(driver.is_raised().expect("accessible memory"));
        let taken = driver.take().expect("an honest device");
        assert_eq!(taken.map(|(len, ..)| len), Some(1));
        let sleeps = !driver.acknowledge().expect("accessible memory");
        let is_raised = driver.is_raised().expect("accessible memory");
        if is_raised || !sleeps {
            let taken = driver.take().expect("an honest device");
            assert_eq!(taken.map(|(len, ..)| len), Some(2));
        }
        let rang = other.join().expect("the device");
        assert!(!sleeps || rang, "asleep without an interrupt");
        assert_eq!(is_raised || driver.is_raised() == Ok(true), rang);
    });
}

/// Fills a buffer and publishes its completion. Raises the interrupt if the driver has acknowledged
/// the last one, and returns whether it did.
fn complete_and_raise(
    device: &mut DeviceQueue,
    interrupt: &mut QueueInterrupt,
    memory: &Memory,
) -> bool {
    assert!(complete(device, memory));
    device.publish(memory).expect("accessible memory");
    let counts = device.unacknowledged(memory).expect("accessible memory");
    interrupt.update(0, counts);
    let raises = interrupt.is_pending();
    if raises {
        interrupt.is_raised = true;
        device.raise(memory).expect("accessible memory");
    }
    raises
}

/// D-10, D-11, D-13: a device that counts too many completions, completes a descriptor again and
/// reports too many bytes, in any order. The driver takes a posted buffer at most once, and never
/// more bytes than it has.
#[test]
fn hostile_device_completes_only_posted_buffers() {
    loom::model(|| {
        let mut rig = Rig::new();
        rig.post(1);
        let Rig {
            memory, mut driver, ..
        } = rig;
        let other = thread::spawn(move || {
            memory.set_completed(2).expect("accessible memory");
            memory
                .set_completion(0, [0, 9, 0, 0])
                .expect("accessible memory");
            memory.set_completed(1).expect("accessible memory");
            memory
                .set_completion(0, [u32::MAX, 1, 0, 0])
                .expect("accessible memory");
            memory
                .set_completion(0, [0, 1, 0, 0])
                .expect("accessible memory");
        });
        let mut taken = 0;
        for _ in 0..2 {
            if let Ok(Some((len, _, completion))) = driver.take() {
                assert_eq!((completion.index, completion.len), (0, len));
                taken += 1;
            }
        }
        assert!(taken <= 1, "a buffer was taken twice");
        other.join().expect("the device");
    });
}
