//! The server as a program.

use std::io;
use std::net::Ipv4Addr;
use std::process::ExitCode;

use clap::{Arg, ArgAction, ArgMatches, Command, value_parser};
use libfbuf::Domain;
use netserver::{Card, Config, Limits, Link, Server, protocol};

fn command() -> Command {
    Command::new("netserver")
        .about("UDP/IP for other processes, by fbufs")
        .arg(
            Arg::new("socket")
                .long("socket")
                .value_name("PATH")
                .default_value(protocol::SOCKET)
                .help("Where clients connect"),
        )
        .arg(
            Arg::new("ip")
                .long("ip")
                .value_name("ADDRESS[/BITS[,GATEWAY]]")
                .value_parser(Own::read)
                .default_value("127.0.0.1/8")
                .help("The own address, its network, and the way out of that"),
        )
        .arg(
            Arg::new("loopback")
                .long("loopback")
                .value_name("PDU")
                .value_parser(value_parser!(usize))
                .conflicts_with("interface")
                .help("Turn packets of so many bytes around below IP"),
        )
        .arg(
            Arg::new("interface")
                .long("interface")
                .value_name("NAME")
                .required_unless_present("loopback")
                .help("Take over a card"),
        )
        .arg(
            Arg::new("no-rings")
                .long("no-rings")
                .action(ArgAction::SetTrue)
                .help("Carry all messages through the kernel"),
        )
        .arg(
            Arg::new("copy")
                .long("copy")
                .action(ArgAction::SetTrue)
                .conflicts_with("share-card")
                .help("Copy packets from the card, instead of reading them where it writes them"),
        )
        .arg(
            Arg::new("share-card")
                .long("share-card")
                .action(ArgAction::SetTrue)
                .requires("interface")
                .help("Let every client read all that comes from the card"),
        )
        .arg(
            Arg::new("large")
                .long("large")
                .action(ArgAction::SetTrue)
                .help(
                    "Send and take messages of more than 64 KiB, which no other system understands",
                ),
        )
}

/// The own address, the bits of its network, and the way out of that.
#[derive(Clone, Copy)]
struct Own {
    address: Ipv4Addr,
    bits: u8,
    gateway: Option<Ipv4Addr>,
}

impl Own {
    fn read(text: &str) -> Result<Own, String> {
        let wrong = || String::from("an address is ADDRESS, ADDRESS/BITS or ADDRESS/BITS,GATEWAY");
        let (network, gateway) = match text.split_once(',') {
            Some((network, gateway)) => (network, Some(gateway)),
            None => (text, None),
        };
        let (address, bits) = network.split_once('/').unwrap_or((network, "24"));
        let gateway = gateway.map(|it| it.parse().map_err(|_| wrong()));
        Ok(Own {
            address: address.parse().map_err(|_| wrong())?,
            bits: bits.parse().ok().filter(|it| *it <= 32).ok_or_else(wrong)?,
            gateway: gateway.transpose()?,
        })
    }
}

fn serve(options: &ArgMatches) -> io::Result<()> {
    let domain = Domain::enter_any()?;
    let own: &Own = options.get_one("ip").ok_or(io::ErrorKind::InvalidInput)?;
    let (link, pdu) = match options.get_one::<String>("interface") {
        Some(name) => {
            let card = Card::open(name, own.address, own.bits, own.gateway)?;
            let mtu = card.mtu();
            (Link::Card(Box::new(card)), mtu)
        }
        None => {
            let pdu = options.get_one("loopback").copied();
            (Link::Loopback, pdu.unwrap_or(4096))
        }
    };
    let config = Config {
        address: own.address,
        pdu,
        is_large: options.get_flag("large"),
    };
    let socket = options.get_one::<String>("socket");
    let socket = socket.map_or(protocol::SOCKET, String::as_str);
    let limits = Limits {
        has_rings: !options.get_flag("no-rings"),
        in_place: !options.get_flag("copy"),
        shares_card: options.get_flag("share-card"),
        ..Limits::default()
    };
    let mut server = Server::new(&domain, socket, config, link, limits)?;
    println!("netserver: {} at {socket}", config.address);
    server.run()
}

fn main() -> ExitCode {
    match serve(&command().get_matches()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("netserver: {why}");
            ExitCode::FAILURE
        }
    }
}
