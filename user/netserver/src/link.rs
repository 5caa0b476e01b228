//! What is below IP.

use std::io;

/// What is below IP.
#[derive(Debug)]
pub enum Link {
    /// Packets turn around (`fbufs.txt` 4, Figure 4).
    Loopback,
    /// A card.
    Card(Card),
}

/// A card that this process has taken over.
#[derive(Debug)]
pub struct Card {}

impl Card {
    /// Takes over an interface.
    ///
    /// # Errors
    /// Those of the socket.
    pub fn open(_name: &str) -> io::Result<Card> {
        Err(io::ErrorKind::Unsupported.into())
    }
}
