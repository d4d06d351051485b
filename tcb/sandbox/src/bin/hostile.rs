//! A domain that executes any order: the attacker in this crate's tests.
//!
//! It reads orders from the first page of its frames (words of 8 bytes; the first is also a 32-bit
//! futex):
//!
//! ```text
//! 0 number of the newest order   1 order   2 … 8 its arguments
//! 9 number of the newest answer  10 answer  11: 1 if an access faulted
//! 16 stop spinning  17 successful accesses  18 faults  19 forbidden values seen
//! ```
#![allow(unsafe_code)]

use abi::layout::{FRAMES, PAGE};
use shmem::Span;
use std::sync::atomic::Ordering::SeqCst;

#[global_allocator]
static HEAP: shmem::arena::Arena<{ 4 << 20 }> = shmem::arena::Arena::new();

const NUMBER: usize = 0;
const ORDER: usize = 1;
const ARGS: usize = 2;
const ANSWERED: usize = 9;
const ANSWER: usize = 10;
const FAULTED: usize = 11;
const STOP: usize = 16;
const ACCESSES: usize = 17;
const FAULTS: usize = 18;
const FORBIDDEN: usize = 19;

fn main() {
    let domain_memory = match shmem::domain_memory::take() {
        Ok(domain_memory) => domain_memory,
        Err(error) => {
            eprintln!("hostile: {error}");
            std::process::exit(3);
        }
    };
    let Some(page) = domain_memory.frames.page(0) else {
        std::process::exit(4)
    };
    println!(
        "hostile: started as {:?}",
        std::env::args().collect::<Vec<_>>()
    );
    let slot = |n: u64| domain_memory.window.page(n as u32).unwrap_or(Span::EMPTY);
    let foreign = |n: u64| domain_memory.foreign.page(n as u32).unwrap_or(Span::EMPTY);
    let mut last = 0;
    loop {
        let Some(number) = page.u32(NUMBER) else {
            std::process::exit(5)
        };
        while number.load(SeqCst) == last {
            shmem::futex::wait(number, last, None);
        }
        last = number.load(SeqCst);
        let arg = |n: usize| get(page, ARGS + n);
        let outcome = match get(page, ORDER) {
            1 => slot(arg(0)).load_u64(0),
            2 => slot(arg(0)).store_u64(0, arg(1)).map(|()| 0),
            3 => Ok(call(
                arg(0),
                [arg(1), arg(2), arg(3), arg(4), arg(5), arg(6)],
            )),
            4 => Ok(spin(page, slot(arg(0)), arg(1), arg(2))),
            5 => Ok(call_as_32_bit(arg(0))),
            // This access does not use a span, so a fault is fatal.
            6 => Ok(write_to_address(arg(0))),
            7 => Ok(vec![1u8; arg(0) as usize].len() as u64),
            8 => std::process::exit(arg(0) as i32),
            9 => panic!("as ordered"),
            10 => foreign(arg(0)).load_u64(0),
            11 => foreign(arg(0)).store_u64(0, arg(1)).map(|()| 0),
            _ => Ok(u64::MAX),
        };
        set(page, FAULTED, u64::from(outcome.is_err()));
        set(page, ANSWER, outcome.unwrap_or(0));
        if let Some(word) = page.u32(ANSWERED * 8) {
            word.store(last, SeqCst);
            shmem::futex::wake(word, 1);
        }
    }
}

fn get(page: Span, word: usize) -> u64 {
    page.u64(word * 8).map_or(0, |word| word.load(SeqCst))
}

fn set(page: Span, word: usize, value: u64) {
    if let Some(word) = page.u64(word * 8) {
        word.store(value, SeqCst);
    }
}

/// Accesses a slot until the test sets [`STOP`]. Mode 0 reads the slot and counts values of at
/// least `value` as forbidden; mode 1 writes `value`.
fn spin(page: Span, slot: Span, mode: u64, value: u64) -> u64 {
    while get(page, STOP) == 0 {
        let result = if mode == 0 {
            slot.load_u64(0)
        } else {
            slot.store_u64(0, value).map(|()| 0)
        };
        match result {
            Ok(found) => {
                if mode == 0 && found >= value {
                    set(page, FORBIDDEN, get(page, FORBIDDEN) + 1);
                }
                set(page, ACCESSES, get(page, ACCESSES) + 1);
            }
            Err(_) => set(page, FAULTS, get(page, FAULTS) + 1),
        }
    }
    0
}

/// Makes any system call, and returns the raw result.
fn call(nr: u64, [a, b, c, d, e, f]: [u64; 6]) -> u64 {
    let result;
    // SAFETY: this is the attacker, which can harm only its own process.
    unsafe {
        std::arch::asm!("syscall", inlateout("rax") nr => result, in("rdi") a, in("rsi") b,
            in("rdx") c, in("r10") d, in("r8") e, in("r9") f, lateout("rcx") _, lateout("r11") _);
    }
    result
}

/// Makes a system call of the 32-bit table.
fn call_as_32_bit(nr: u64) -> u64 {
    let result;
    // SAFETY: as in `call`.
    unsafe {
        std::arch::asm!("int 0x80", inlateout("rax") nr => result);
    }
    result
}

fn write_to_address(addr: u64) -> u64 {
    // SAFETY: as in `call`; the store is not elided, and may fault.
    unsafe { std::ptr::with_exposed_provenance_mut::<u64>(addr as usize).write_volatile(0) };
    (FRAMES + PAGE) as u64
}
