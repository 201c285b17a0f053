#include "daemon/control/accept_filter.h"

#include <arpa/inet.h>
#include <linux/filter.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <string>
#include <utility>
#include <vector>

namespace tensorlane::control {
namespace {

// What the filter answers: bytes of the packet to keep.
constexpr std::uint32_t kDrop = 0, kKeep = 0xffffffff;
constexpr std::uint32_t kWholeWord = 0xffffffff;

constexpr std::array<std::uint8_t, 12> kMapped{0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff};

bool is_ipv4(const AddressBytes& address) {
  return std::equal(kMapped.begin(), kMapped.end(), address.begin());
}

// A classic BPF program about a TCP segment. SKF_NET_OFF is where its IP header begins.
class Program {
 public:
  void load_word(std::uint32_t offset_in_ip) { add(BPF_LD | BPF_W | BPF_ABS, network(offset_in_ip)); }
  void load_byte(std::uint32_t offset_in_ip) { add(BPF_LD | BPF_B | BPF_ABS, network(offset_in_ip)); }
  void shift_right(std::uint32_t bits) { add(BPF_ALU | BPF_RSH | BPF_K, bits); }
  void keep_bits(std::uint32_t mask) { add(BPF_ALU | BPF_AND | BPF_K, mask); }
  void answer(std::uint32_t what) { add(BPF_RET | BPF_K, what); }
  // Goes on with the next instruction where the value is `value`, else `skip` instructions after it.
  void unless(std::uint32_t value, std::uint8_t skip) { code_.push_back({BPF_JMP | BPF_JEQ | BPF_K, 0, skip, value}); }
  // Goes on where the value is `value`, else at the place that a later call of land() gives this jump.
  std::size_t unless_far(std::uint32_t value) {
    code_.push_back({BPF_JMP | BPF_JEQ | BPF_K, 1, 0, value});
    add(BPF_JMP | BPF_JA, 0);
    return code_.size() - 1;
  }
  void land(std::size_t jump) { code_[jump].k = static_cast<std::uint32_t>(code_.size() - jump - 1); }
  std::vector<sock_filter>& code() { return code_; }

 private:
  static std::uint32_t network(std::uint32_t offset) { return static_cast<std::uint32_t>(SKF_NET_OFF) + offset; }
  void add(std::uint16_t code, std::uint32_t k) { code_.push_back({code, 0, 0, k}); }

  std::vector<sock_filter> code_;
};

std::uint32_t word(const AddressBytes& address, std::size_t at) {
  std::uint32_t value = 0;
  std::memcpy(&value, address.data() + at, sizeof value);
  return ntohl(value);
}

// Of the word of an address that begins at byte `at`: the bits that are in the first `bits` of the address.
std::uint32_t mask_of(std::size_t at, unsigned bits) {
  const auto before = static_cast<unsigned>(8 * at);
  if (bits <= before) return 0;
  return bits >= before + 32 ? kWholeWord : kWholeWord << (before + 32 - bits);
}

// Answers `what` where the first `bits` of the packet's source are those of one of these. The source begins at byte 12
// of an IPv4 header, at byte 8 of one of IPv6.
void answer_for(Program& program, const std::set<AddressBytes>& addresses, unsigned bits, bool ipv4,
                std::uint32_t what) {
  struct Compared {
    std::uint32_t offset, mask;
    std::size_t at;
  };
  std::vector<Compared> words;
  std::uint8_t instructions = 0;
  for (std::size_t at = ipv4 ? 12 : 0; at < sizeof(AddressBytes); at += 4) {
    const Compared word{static_cast<std::uint32_t>(ipv4 ? 12 : 8 + at), mask_of(at, bits), at};
    if (word.mask == 0) break;
    words.push_back(word);
    instructions = static_cast<std::uint8_t>(instructions + (word.mask == kWholeWord ? 2 : 3));
  }
  for (const AddressBytes& address : addresses) {
    if (is_ipv4(address) != ipv4) continue;
    std::uint8_t left = instructions;  // of this address, before the answer
    for (const Compared& w : words) {
      program.load_word(w.offset);
      if (w.mask != kWholeWord) program.keep_bits(w.mask);
      left = static_cast<std::uint8_t>(left - (w.mask == kWholeWord ? 2 : 3));
      program.unless(word(address, w.at) & w.mask, static_cast<std::uint8_t>(left + 1));
    }
    program.answer(what);
  }
}

void answer_version(Program& program, const Strangers::Shut& shut, const KnownAddresses& known, bool ipv4) {
  answer_for(program, shut.addresses, 128, ipv4, kDrop);
  if (shut.all_but_known) answer_for(program, known.prefixes, known.bits, ipv4, kKeep);
  program.answer(shut.all_but_known ? kDrop : kKeep);
}

// One of IPv4 stays one.
AddressBytes first_bits(const AddressBytes& address, unsigned bits) {
  if (is_ipv4(address)) bits = std::max(bits, 96u);
  AddressBytes first{};
  for (std::size_t i = 0; i < first.size(); ++i) {
    const unsigned from = static_cast<unsigned>(8 * i);
    const unsigned kept = bits <= from ? 0 : std::min(bits - from, 8u);
    first[i] = static_cast<std::uint8_t>(address[i] & (0xff00u >> kept));
  }
  return first;
}

}  // namespace

KnownAddresses known_addresses(const std::set<AddressBytes>& addresses) {
  KnownAddresses known{addresses};
  while (known.prefixes.size() > kMaxKnown) {
    --known.bits;
    std::set<AddressBytes> shorter;
    for (const AddressBytes& prefix : known.prefixes) shorter.insert(first_bits(prefix, known.bits));
    known.prefixes = std::move(shorter);
  }
  return known;
}

Status filter_connections(int listener, const Strangers::Shut& shut, const KnownAddresses& known) {
  Program program;
  program.load_byte(0);
  program.shift_right(4);
  const std::size_t not_ipv4 = program.unless_far(4);
  answer_version(program, shut, known, true);
  program.land(not_ipv4);
  answer_version(program, shut, known, false);
  const sock_fprog whole{static_cast<unsigned short>(program.code().size()), program.code().data()};
  if (::setsockopt(listener, SOL_SOCKET, SO_ATTACH_FILTER, &whole, sizeof whole) == 0) return {};
  return {Code::kUnavailable, std::string("the kernel takes no filter for connections: ") + std::strerror(errno),
          "control port"};
}

bool peer_address(int socket, AddressBytes* address) {
  sockaddr_storage storage{};
  socklen_t length = sizeof storage;
  if (::getpeername(socket, reinterpret_cast<sockaddr*>(&storage), &length) != 0) return false;
  if (storage.ss_family == AF_INET) {
    std::copy(kMapped.begin(), kMapped.end(), address->begin());
    std::memcpy(address->data() + kMapped.size(), &reinterpret_cast<const sockaddr_in&>(storage).sin_addr, 4);
    return true;
  }
  if (storage.ss_family != AF_INET6) return false;
  std::memcpy(address->data(), &reinterpret_cast<const sockaddr_in6&>(storage).sin6_addr, address->size());
  return true;
}

std::string address_text(const AddressBytes& address) {
  std::array<char, INET6_ADDRSTRLEN> text{};
  if (is_ipv4(address)) {
    ::inet_ntop(AF_INET, address.data() + kMapped.size(), text.data(), text.size());
  } else {
    ::inet_ntop(AF_INET6, address.data(), text.data(), text.size());
  }
  return text.data();
}

std::string network_text(const AddressBytes& address) {
  return is_ipv4(address) ? address_text(address) : address_text(first_bits(address, 64)) + "/64";
}

bool parse_address(const std::string& text, AddressBytes* address) {
  std::copy(kMapped.begin(), kMapped.end(), address->begin());
  return ::inet_pton(AF_INET, text.c_str(), address->data() + kMapped.size()) == 1 ||
         ::inet_pton(AF_INET6, text.c_str(), address->data()) == 1;
}

}  // namespace tensorlane::control
