# perl: data, processes, sockets, signals, files.
perl -v | grep -c 'This is perl 5'
perl -e '
use strict; use warnings; $| = 1;
my %count; $count{$_ % 13}++ for 1 .. 100_000; print join(",", map { "$_=$count{$_}" } sort { $a <=> $b } keys %count), "\n";
my $text = join " ", map { sprintf "%x", $_ * 7919 } 1 .. 5000; my @found = $text =~ /\b([a-f]+\d)/g; print scalar(@found), " $found[0]\n";
use POSIX qw(:sys_wait_h strftime floor); print strftime("%F %T", gmtime 1_000_000_000), " ", floor(-2.5), "\n";
pipe(my $r, my $w) or die; my $pid = fork // die;
if (!$pid) { close $r; print $w "from the child\n"; exit 5 } close $w; print <$r>; waitpid $pid, 0; print $? >> 8, "\n";
use Socket; socketpair(my $one, my $two, AF_UNIX, SOCK_STREAM, PF_UNSPEC) or print "no socketpair: $!\n";
if (defined $one) { syswrite $one, "through a socket"; sysread $two, my $got, 100; print "$got\n" }
local $SIG{ALRM} = sub { die "alarm\n" }; eval { alarm 1; select undef, undef, undef, 5; }; print "caught: $@";
my $n = 0; local $SIG{USR1} = sub { $n++ }; kill USR1 => $$ for 1 .. 3; print "signals: $n\n";
use File::Temp "tempfile"; my ($fh, $name) = tempfile(UNLINK => 1); print $fh "x" x 10_000; close $fh; print -s $name, "\n";
use Fcntl qw(:flock SEEK_SET); open my $l, "+>", "lock" or die; flock $l, LOCK_EX or die;
if (!fork) { open my $m, "+<", "lock"; exit(flock($m, LOCK_EX | LOCK_NB) ? 1 : 0) } wait; print "lock held: ", $? >> 8, "\n";
opendir my $d, "/proc/self/fd" or die; print "descriptors: ", scalar(grep { /^\d+$/ } readdir $d) > 3 ? "some" : "none", "\n";
my @lines = `seq 3`; print @lines; open my $p, "-|", "sort", "-r", "/etc/shells" or die; my $c = () = <$p>; print $c > 0 ? "read\n" : "nothing\n"; close $p;
use Time::HiRes qw(sleep time); my $t = time; sleep 0.05; print time - $t >= 0.05 ? "slept\n" : "woke early\n";
printf "%s\n", join " ", map { $_->[0] } sort { $a->[1] <=> $b->[1] or $a->[0] cmp $b->[0] } map { [$_, length] } qw(ccc a bb dd e);
use Digest::MD5 "md5_hex"; use MIME::Base64; print md5_hex("causeway"), " ", encode_base64("causeway");
'
perl -MIO::Select -MIO::Handle -e 'pipe my $r, my $w; my $s = IO::Select->new($r); print scalar($s->can_read(0)) , "\n"; syswrite $w, "x"; print scalar(my @x = $s->can_read(1)), "\n"'
perl -MIO::Socket::INET -e '
my $l = IO::Socket::INET->new(Listen => 5, LocalAddr => "127.0.0.1", LocalPort => 0, ReuseAddr => 1) or die "listen: $!"; my $port = $l->sockport;
if (!fork) { my $c = IO::Socket::INET->new("127.0.0.1:$port") or die; print $c "hello over tcp\n"; print scalar <$c>; exit } my $s = $l->accept; my $line = <$s>; print $s uc $line; wait'
perl -Mthreads -e 'my @t = map { my $n = $_; threads->create(sub { my $s = 0; $s += $_ for 1 .. 1000 * $n; $s }) } 1 .. 4; print join(" ", map { $_->join } @t), "\n"'
perl -pe 's/(\d+)/$1*2/ge' <<<"a1 b22 c333"; perl -F: -lane 'print $F[0] if $F[2] < 3' /etc/passwd; perl -i.bak -pe 'tr/a-z/A-Z/' <(true) 2>/dev/null; seq 5 | perl -ne 'END { print $s, "\n" } $s += $_'
