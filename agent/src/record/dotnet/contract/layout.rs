//! The offsets and globals of the contracts ExecutionManager, RuntimeTypeSystem, Loader and
//! EcmaMetadata, as a runtime's descriptor states them.

use crate::record::dotnet::descriptor::Descriptor;

/// Most bytes of a bucket of the runtime's hash maps.
pub(super) const MOST_BUCKET: usize = 256;

/// How the nibble map is searched.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum NibbleMap {
    /// ExecutionManager 1: back, unit by unit.
    Linear,
    /// ExecutionManager 2: a unit may hold the distance to the method's start.
    Constant,
}

/// What this module needs of a descriptor. Offsets are in bytes.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Contract {
    pub(super) nibble_map: NibbleMap,
    /// Address of the RangeSectionMap.
    pub(super) code_ranges: u64,
    /// Values below or equal to it, in place of a code header, mean a stub.
    pub(super) last_stub: u64,
    pub(super) map: RangeOffsets,
    pub(super) precompiled: Option<PrecompiledOffsets>,
    pub(super) types: TypeOffsets,
    pub(super) methods: MethodOffsets,
    pub(super) modules: ModuleOffsets,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct RangeOffsets {
    pub top: u64,
    pub fragment_begin: u64,
    pub fragment_end: u64,
    pub fragment_section: u64,
    pub fragment_next: u64,
    pub begin: u64,
    pub end: u64,
    pub deleted: u64,
    pub flags: u64,
    pub heap: u64,
    pub module: u64,
    pub node_start: u64,
    pub node_map_base: u64,
    pub node_map: u64,
    pub header_method: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct PrecompiledOffsets {
    pub info: u64,
    pub composite: u64,
    pub functions: u64,
    pub function_count: u64,
    pub cold_count: u64,
    pub cold: u64,
    pub thunks: u64,
    pub entry_points: u64,
    pub function_size: u64,
    pub function_begin: u64,
    pub directory_rva: u64,
    pub directory_size: u64,
    pub buckets: u64,
    pub bucket_size: u64,
    pub keys: u64,
    pub values: u64,
    pub slots: u64,
    pub value_mask: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct TypeOffsets {
    pub flags: u64,
    pub flags2: u64,
    pub class: u64,
    pub module: u64,
    pub instantiation: u64,
    pub class_table: u64,
    pub rank: u64,
    pub argument_count: u64,
    pub dictionary_count: u64,
    pub description: u64,
    pub parameter: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct MethodOffsets {
    pub alignment: u64,
    pub remainder_bits: u32,
    pub chunk_index: u64,
    pub flags: u64,
    pub remainder: u64,
    pub chunk_size: u64,
    pub chunk_table: u64,
    pub chunk_range: u64,
    pub signature: u64,
    pub signature_size: u64,
    pub dynamic_name: u64,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct ModuleOffsets {
    pub path: u64,
    pub file_name: u64,
    pub assembly: u64,
    pub image: u64,
    pub layout: u64,
    pub base: u64,
    pub size: u64,
    pub flags: u64,
}

impl Contract {
    /// The contract in `descriptor`. `None` if it is of another version, or lacks a field: then
    /// the names come from the runtime's lists alone.
    pub(crate) fn new(descriptor: &Descriptor) -> Option<Contract> {
        // The maps of code and the sizes differ for 32 bits, and no such runtime could be tried.
        if descriptor.width != 8 {
            return None;
        }
        let version = |name| descriptor.contract(name);
        let nibble_map = match version("ExecutionManager")? {
            1 => NibbleMap::Linear,
            2 => NibbleMap::Constant,
            _ => return None,
        };
        if ["RuntimeTypeSystem", "Loader", "EcmaMetadata"].iter().any(|name| version(name) != Some(1)) {
            return None;
        }
        let at = |name: &str, field| descriptor.offset(name, field).map(|offset| offset as u64);
        let size = |name| at(name, "!");
        Some(Contract {
            nibble_map,
            code_ranges: descriptor.address("ExecutionManagerCodeRangeMapAddress").filter(|&map| map != 0)?,
            last_stub: descriptor.number("StubCodeBlockLast")?,
            map: RangeOffsets {
                top: at("RangeSectionMap", "TopLevelData")?,
                fragment_begin: at("RangeSectionFragment", "RangeBegin")?,
                fragment_end: at("RangeSectionFragment", "RangeEndOpen")?,
                fragment_section: at("RangeSectionFragment", "RangeSection")?,
                fragment_next: at("RangeSectionFragment", "Next")?,
                begin: at("RangeSection", "RangeBegin")?,
                end: at("RangeSection", "RangeEndOpen")?,
                deleted: at("RangeSection", "NextForDelete")?,
                flags: at("RangeSection", "Flags")?,
                heap: at("RangeSection", "HeapList")?,
                module: at("RangeSection", "R2RModule")?,
                node_start: at("CodeHeapListNode", "StartAddress")?,
                node_map_base: at("CodeHeapListNode", "MapBase")?,
                node_map: at("CodeHeapListNode", "HeaderMap")?,
                header_method: at("RealCodeHeader", "MethodDesc")?,
            },
            precompiled: precompiled(descriptor),
            types: TypeOffsets {
                flags: at("MethodTable", "MTFlags")?,
                flags2: at("MethodTable", "MTFlags2")?,
                class: at("MethodTable", "EEClassOrCanonMT")?,
                module: at("MethodTable", "Module")?,
                instantiation: at("MethodTable", "PerInstInfo")?,
                class_table: at("EEClass", "MethodTable")?,
                rank: at("ArrayClass", "Rank")?,
                argument_count: at("GenericsDictInfo", "NumTypeArgs")?,
                dictionary_count: at("GenericsDictInfo", "NumDicts")?,
                description: at("TypeDesc", "TypeAndFlags")?,
                parameter: at("ParamTypeDesc", "TypeArg")?,
            },
            methods: MethodOffsets {
                alignment: descriptor.number("MethodDescAlignment").filter(|size| (1..=64).contains(size))?,
                remainder_bits: descriptor
                    .number("MethodDescTokenRemainderBitCount")
                    .and_then(|bits| u32::try_from(bits).ok())
                    .filter(|bits| (1..=16).contains(bits))?,
                chunk_index: at("MethodDesc", "ChunkIndex")?,
                flags: at("MethodDesc", "Flags")?,
                remainder: at("MethodDesc", "Flags3AndTokenRemainder")?,
                chunk_size: size("MethodDescChunk")?,
                chunk_table: at("MethodDescChunk", "MethodTable")?,
                chunk_range: at("MethodDescChunk", "FlagsAndTokenRange")?,
                signature: at("StoredSigMethodDesc", "Sig")?,
                signature_size: at("StoredSigMethodDesc", "cSig")?,
                dynamic_name: at("DynamicMethodDesc", "MethodName")?,
            },
            modules: ModuleOffsets {
                path: at("Module", "Path")?,
                file_name: at("Module", "FileName")?,
                assembly: at("Module", "PEAssembly")?,
                image: at("PEAssembly", "PEImage")?,
                layout: at("PEImage", "LoadedImageLayout")?,
                base: at("PEImageLayout", "Base")?,
                size: at("PEImageLayout", "Size")?,
                flags: at("PEImageLayout", "Flags")?,
            },
        })
    }
}

/// Fields about precompiled code. A descriptor without them still names jitted code.
fn precompiled(descriptor: &Descriptor) -> Option<PrecompiledOffsets> {
    let at = |name: &str, field| descriptor.offset(name, field).map(|offset| offset as u64);
    Some(PrecompiledOffsets {
        info: at("Module", "ReadyToRunInfo")?,
        composite: at("ReadyToRunInfo", "CompositeInfo")?,
        functions: at("ReadyToRunInfo", "RuntimeFunctions")?,
        function_count: at("ReadyToRunInfo", "NumRuntimeFunctions")?,
        cold_count: at("ReadyToRunInfo", "NumHotColdMap")?,
        cold: at("ReadyToRunInfo", "HotColdMap")?,
        thunks: at("ReadyToRunInfo", "DelayLoadMethodCallThunks")?,
        entry_points: at("ReadyToRunInfo", "EntryPointToMethodDescMap")?,
        function_size: at("RuntimeFunction", "!").filter(|size| (8..=16).contains(size))?,
        function_begin: at("RuntimeFunction", "BeginAddress")?,
        directory_rva: at("ImageDataDirectory", "VirtualAddress")?,
        directory_size: at("ImageDataDirectory", "Size")?,
        buckets: at("HashMap", "Buckets")?,
        bucket_size: at("Bucket", "!").filter(|&size| size <= MOST_BUCKET as u64)?,
        keys: at("Bucket", "Keys")?,
        values: at("Bucket", "Values")?,
        slots: descriptor.number("HashMapSlotsPerBucket").filter(|slots| (1..=16).contains(slots))?,
        value_mask: descriptor.number("HashMapValueMask")?,
    })
}
