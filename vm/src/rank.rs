//! Ranks of the locks of the virtual-memory system: see [`nucleus::sync::Rank`].

nucleus::lock_ranks! {
    /// An address space's map.
    MAP = 53,
    /// A part of an amap, with the anons in it.
    AMAP = 55,
    /// An object's pages.
    OBJECT = 60,
    /// Where the page of one anon is that several amaps refer to.
    ANON = 110,
    /// What the pagedaemon goes round; chunks of pages enter it when they are made and leave it
    /// when they end, which may be with a leaf locked.
    ENROLLED = 125,
    /// The slots of all swap devices: nothing else is taken inside.
    SWAP = 142,
}
