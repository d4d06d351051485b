//! Tables of the Firefox Profiler's processed profile, version 61
//! (`docs-developer/CHANGELOG-formats.md` in the repository `firefox-devtools/profiler`).
//!
//! A table is an object of columns of the same length. Rows refer to others by their index.

use serde::Serialize;
use serde_json::{Value, json};
use std::collections::HashMap;
use std::hash::Hash;

/// Version of the format.
pub(super) const VERSION: u32 = 61;
/// Type of a resource that is a library.
const LIBRARY: u32 = 1;
/// Phase of a marker with a start and an end.
const INTERVAL: u32 = 1;

/// Rows without duplicates.
struct Rows<T>(Vec<T>, HashMap<T, usize>);

impl<T> Default for Rows<T> {
    fn default() -> Self {
        Self(Vec::new(), HashMap::new())
    }
}

impl<T: Clone + Eq + Hash> Rows<T> {
    fn of(&mut self, row: T) -> usize {
        if let Some(index) = self.1.get(&row) {
            return *index;
        }
        let index = self.0.len();
        self.0.push(row.clone());
        self.1.insert(row, index);
        index
    }

    fn column<V: Serialize>(&self, value: impl Fn(&T) -> V) -> Value {
        json!(self.0.iter().map(value).collect::<Vec<V>>())
    }
}

/// A function: name, library and source file.
#[derive(Clone, PartialEq, Eq, Hash)]
struct FunctionRow {
    name: usize,
    resource: Option<usize>,
    source: Option<usize>,
}

/// A function in a library's file: its name and its address.
#[derive(Clone, PartialEq, Eq, Hash)]
struct NativeSymbol {
    library: usize,
    address: u64,
    name: usize,
}

/// A frame.
#[derive(Clone, PartialEq, Eq, Hash)]
struct FrameRow {
    function: usize,
    address: Option<u64>,
    native: Option<usize>,
    inline_depth: u32,
    category: usize,
    line: Option<u32>,
}

/// A frame that is to be added.
pub(super) struct NewFrame<'a> {
    pub(super) name: &'a str,
    /// Index of the library.
    pub(super) library: Option<usize>,
    /// Address of the instruction in the library.
    pub(super) address: Option<u64>,
    /// Name and address of the function that contains the instruction, also if this frame is
    /// inlined in it.
    pub(super) native: Option<(&'a str, u64)>,
    /// Number of frames at the same address into which this one is inlined.
    pub(super) inline_depth: u32,
    pub(super) category: usize,
    pub(super) source: Option<(&'a str, u32)>,
}

/// The tables that all threads share.
#[derive(Default)]
pub(super) struct Shared {
    texts: Rows<String>,
    sources: Rows<usize>,
    /// Names of libraries, and their indices.
    resources: Rows<(usize, usize)>,
    functions: Rows<FunctionRow>,
    natives: Rows<NativeSymbol>,
    frames: Rows<FrameRow>,
    /// Frames and callers.
    stacks: Rows<(usize, Option<usize>)>,
}

impl Shared {
    /// Returns the index of a text.
    pub(super) fn text(&mut self, text: &str) -> usize {
        self.texts.of(text.to_owned())
    }

    /// Returns the index of a frame.
    pub(super) fn frame(&mut self, new: &NewFrame<'_>, libraries: &[Library]) -> usize {
        let name = self.text(new.name);
        let library = new
            .library
            .and_then(|index| Some((index, libraries.get(index)?)));
        let resource = library.map(|(index, library)| {
            let name = self.text(&library.name);
            self.resources.of((name, index))
        });
        let source = new.source.map(|(file, _)| {
            let file = self.text(file);
            self.sources.of(file)
        });
        let function = self.functions.of(FunctionRow {
            name,
            resource,
            source,
        });
        let native = new
            .native
            .zip(library)
            .map(|((name, address), (library, _))| {
                let name = self.text(name);
                self.natives.of(NativeSymbol {
                    library,
                    address,
                    name,
                })
            });
        self.frames.of(FrameRow {
            function,
            address: new.address,
            native,
            inline_depth: new.inline_depth,
            category: new.category,
            line: new.source.map(|(_, line)| line),
        })
    }

    /// Returns the index of the stack that consists of `frame` and of the earlier stack with index
    /// `caller`, if any.
    pub(super) fn stack(&mut self, frame: usize, caller: Option<usize>) -> usize {
        self.stacks.of((frame, caller))
    }

    pub(super) fn json(&self) -> Value {
        let (functions, frames) = (&self.functions, &self.frames);
        let empty = |len: usize| vec![Value::Null; len];
        let or_none = |index: Option<usize>| index.map_or(json!(-1), |index| json!(index));
        json!({
            "stringArray": self.texts.0,
            "sources": {
                "length": self.sources.0.len(),
                "id": empty(self.sources.0.len()),
                "filename": self.sources.0,
                "startLine": self.sources.column(|_| 1),
                "startColumn": self.sources.column(|_| 1),
                "sourceMapURL": empty(self.sources.0.len()),
            },
            "resourceTable": {
                "length": self.resources.0.len(),
                "lib": self.resources.column(|(_, library)| *library),
                "name": self.resources.column(|(name, _)| *name),
                "host": empty(self.resources.0.len()),
                "type": self.resources.column(|_| LIBRARY),
            },
            "funcTable": {
                "length": functions.0.len(),
                "name": functions.column(|f| f.name),
                "isJS": functions.column(|_| false),
                "relevantForJS": functions.column(|_| false),
                "resource": functions.column(|f| or_none(f.resource)),
                "source": functions.column(|f| f.source),
                "lineNumber": empty(functions.0.len()),
                "columnNumber": empty(functions.0.len()),
            },
            "nativeSymbols": {
                "length": self.natives.0.len(),
                "libIndex": self.natives.column(|n| n.library),
                "address": self.natives.column(|n| n.address),
                "name": self.natives.column(|n| n.name),
                "functionSize": empty(self.natives.0.len()),
            },
            "frameTable": {
                "length": frames.0.len(),
                "address": frames.column(|f| f.address.map_or(json!(-1), |a| json!(a))),
                "inlineDepth": frames.column(|f| f.inline_depth),
                "category": frames.column(|f| f.category),
                "subcategory": frames.column(|_| 0),
                "func": frames.column(|f| f.function),
                "nativeSymbol": frames.column(|f| f.native),
                "innerWindowID": frames.column(|_| 0),
                "line": frames.column(|f| f.line),
                "column": empty(frames.0.len()),
            },
            "stackTable": {
                "length": self.stacks.0.len(),
                "frame": self.stacks.column(|(frame, _)| *frame),
                "prefix": self.stacks.column(|(_, caller)| *caller),
            },
        })
    }
}

/// A program or a library.
#[derive(Clone, Debug)]
pub(super) struct Library {
    pub(super) name: String,
    pub(super) path: String,
    pub(super) build_id: Option<String>,
}

impl Library {
    pub(super) fn json(&self) -> Value {
        json!({
            "arch": "x86_64",
            "name": self.name,
            "path": self.path,
            "debugName": self.name,
            "debugPath": self.path,
            "breakpadId": breakpad_id(self.build_id.as_deref().unwrap_or_default()),
            "codeId": self.build_id,
        })
    }
}

/// Returns Breakpad's form of a build id: a GUID, whose first three fields are little-endian, and
/// the age 0.
fn breakpad_id(build_id: &str) -> String {
    let digits = build_id.chars().filter(char::is_ascii_hexdigit);
    let digits: Vec<char> = digits.chain(std::iter::repeat('0')).take(32).collect();
    let bytes: Vec<String> = digits.chunks(2).map(|pair| pair.iter().collect()).collect();
    let order = [3, 2, 1, 0, 5, 4, 7, 6, 8, 9, 10, 11, 12, 13, 14, 15];
    let guid: String = order
        .iter()
        .filter_map(|at| bytes.get(*at))
        .map(String::as_str)
        .collect();
    format!("{}0", guid.to_uppercase())
}

/// An interval with an event.
pub(super) struct IntervalMarker {
    /// Index of its name.
    pub(super) name: usize,
    pub(super) category: usize,
    pub(super) start_ms: f64,
    pub(super) end_ms: f64,
    /// Its fields, as its schema describes them.
    pub(super) data: Value,
}

/// Samples and markers of a track.
#[derive(Default)]
pub(super) struct Track {
    pub(super) stacks: Vec<usize>,
    pub(super) times_ms: Vec<f64>,
    pub(super) markers: Vec<IntervalMarker>,
}

impl Track {
    /// Returns a thread of the format; `cpu_us` is the CPU time of a sample, if it is known.
    pub(super) fn json(
        &self,
        name: &str,
        process: (&str, usize),
        tid: &str,
        cpu_us: Option<f64>,
    ) -> Value {
        let len = self.stacks.len();
        let mut samples = json!({
            "length": len,
            "stack": self.stacks,
            "time": self.times_ms,
            "weight": null,
            "weightType": "samples",
        });
        if let Some(cpu_us) = cpu_us {
            samples["threadCPUDelta"] = json!(vec![cpu_us; len]);
        }
        let markers = &self.markers;
        fn column<V: Serialize>(of: &[IntervalMarker], value: fn(&IntervalMarker) -> V) -> Value {
            json!(of.iter().map(value).collect::<Vec<V>>())
        }
        json!({
            "processType": "default",
            "processStartupTime": 0,
            "processShutdownTime": null,
            "registerTime": 0,
            "unregisterTime": null,
            "pausedRanges": [],
            "name": name,
            "isMainThread": false,
            "processName": process.0,
            "pid": process.1.to_string(),
            "tid": tid,
            "samples": samples,
            "showMarkersInTimeline": !markers.is_empty(),
            "markers": {
                "length": markers.len(),
                "category": column(markers, |marker| marker.category),
                "data": column(markers, |marker| marker.data.clone()),
                "endTime": column(markers, |marker| marker.end_ms),
                "name": column(markers, |marker| marker.name),
                "phase": column(markers, |_| INTERVAL),
                "startTime": column(markers, |marker| marker.start_ms),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn build_ids_have_breakpads_form() {
        let id = "be4e976c325246ee9d6b7847a670b2a90000";
        assert_eq!(breakpad_id(id), "6C974EBE5232EE469D6B7847A670B2A90");
        assert_eq!(breakpad_id("c0de"), "0000DEC00000000000000000000000000");
    }
}
