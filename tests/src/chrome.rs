//! Chrome traces: the stacks of each thread over time, from their V8 CPU profiles.

use serde_json::Value;
use std::collections::HashMap;

/// One CPU profile of a file: a thread while it was recorded.
#[derive(Debug, Default)]
pub struct CpuProfile {
    /// Process and thread.
    pub pid: u64,
    pub tid: u64,
    /// Stacks from the root, each with its begin and end in microseconds. `(idle)` is a stack too.
    pub stacks: Vec<(Vec<String>, f64, f64)>,
}

impl CpuProfile {
    /// When stacks with a function began and ended, in microseconds; adjacent ones are one.
    pub fn times_of(&self, function: &str) -> Vec<(f64, f64)> {
        let mut times: Vec<(f64, f64)> = Vec::new();
        for (stack, begin, end) in &self.stacks {
            match times.last_mut() {
                _ if stack.iter().all(|name| name != function) => {}
                Some(last) if last.1 == *begin => last.1 = *end,
                _ => times.push((*begin, *end)),
            }
        }
        times
    }
}

/// The events of a file.
pub fn events(file: &Value) -> &[Value] {
    file.as_array().expect("an array of events")
}

#[derive(Default)]
struct Reader {
    profile: CpuProfile,
    clock: f64,
    nodes: HashMap<u64, (Option<u64>, String)>,
    samples: Vec<(u64, f64)>,
    end: Option<f64>,
}

/// The CPU profiles of a file in the order of its `Profile` events. Checks that each node and
/// profile is declared before it is used, once, that times do not decrease, and that each profile
/// has an end.
pub fn profiles(file: &Value) -> Vec<CpuProfile> {
    let mut order = Vec::new();
    let mut readers: HashMap<&str, Reader> = HashMap::new();
    for event in events(file).iter().filter(|event| event["ph"] == "P") {
        let id = event["id"].as_str().expect("id");
        let number = |name: &str| event[name].as_u64().expect("a number");
        let data = &event["args"]["data"];
        if event["name"] == "Profile" {
            let profile = CpuProfile { pid: number("pid"), tid: number("tid"), stacks: Vec::new() };
            let clock = data["startTime"].as_f64().expect("startTime");
            order.push(id);
            let before = readers.insert(id, Reader { profile, clock, ..Reader::default() });
            assert!(before.is_none(), "{id} is used twice");
            continue;
        }
        assert_eq!(event["name"], "ProfileChunk");
        let reader = readers.get_mut(id).expect("declared before");
        assert_eq!((number("pid"), number("tid")), (reader.profile.pid, reader.profile.tid));
        reader.chunk(data);
    }
    order.into_iter().map(|id| readers.remove(id).expect("a profile").finished()).collect()
}

impl Reader {
    fn chunk(&mut self, data: &Value) {
        for node in data["cpuProfile"]["nodes"].as_array().expect("nodes") {
            let parent = node["parent"].as_u64();
            assert!(parent.is_none_or(|parent| self.nodes.contains_key(&parent)), "a parent comes first");
            let name = node["callFrame"]["functionName"].as_str().expect("name").to_owned();
            let before = self.nodes.insert(node["id"].as_u64().expect("id"), (parent, name));
            assert!(before.is_none(), "{node} is declared twice");
        }
        let samples = data["cpuProfile"]["samples"].as_array().expect("samples");
        let deltas = data["timeDeltas"].as_array().expect("deltas");
        assert_eq!(samples.len(), deltas.len());
        for (sample, delta) in samples.iter().zip(deltas) {
            let delta = delta.as_f64().expect("delta");
            assert!(delta >= 0.0, "time goes back");
            self.clock += delta;
            self.samples.push((sample.as_u64().expect("node"), self.clock));
        }
        self.end = data["endTime"].as_f64().or(self.end);
    }

    fn finished(mut self) -> CpuProfile {
        let end = self.end.expect("an end");
        for (i, &(node, begin)) in self.samples.iter().enumerate() {
            let end = self.samples.get(i + 1).map_or(end, |next| next.1);
            let mut stack = Vec::new();
            let mut next = Some(node);
            while let Some(id) = next {
                let (parent, name) = &self.nodes[&id];
                stack.insert(0, name.clone());
                next = *parent;
            }
            assert_eq!(stack.remove(0), "(root)");
            if begin < end {
                self.profile.stacks.push((stack, begin, end));
            }
        }
        self.profile
    }
}
