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
                .value_name("ADDRESS")
                .value_parser(value_parser!(Ipv4Addr))
                .default_value("127.0.0.1")
                .help("The own address"),
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
            Arg::new("large")
                .long("large")
                .action(ArgAction::SetTrue)
                .help(
                    "Send and take messages of more than 64 KiB, which no other system understands",
                ),
        )
}

fn serve(options: &ArgMatches) -> io::Result<()> {
    let domain = Domain::enter_any()?;
    let (link, pdu) = match options.get_one::<String>("interface") {
        Some(name) => (Link::Card(Card::open(name)?), 1500),
        None => {
            let pdu = options.get_one("loopback").copied();
            (Link::Loopback, pdu.unwrap_or(4096))
        }
    };
    let address = options.get_one("ip").copied();
    let config = Config {
        address: address.unwrap_or(Ipv4Addr::LOCALHOST),
        pdu,
        is_large: options.get_flag("large"),
    };
    let socket = options.get_one::<String>("socket");
    let socket = socket.map_or(protocol::SOCKET, String::as_str);
    let mut server = Server::new(&domain, socket, config, link, Limits::default())?;
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
