//! Ranks of the locks of protocols: see [`nucleus::sync::Rank`].

nucleus::lock_ranks! {
    /// Connections and ports of one protocol; taken to send to an end that is gone.
    NET = 44,
    /// What interfaces that configure themselves have come to; messages are sent with it.
    NET_CONFIGURE = 61,
    /// One connection whose segments are packets.
    NET_CONNECTION = 63,
}
