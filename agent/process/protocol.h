/*
 * agent/process/protocol.h - the versions of all bytes between agents: messages of the core and of
 * the services, and their contents.
 *
 * Two agents use the newest version that both speak. Without one they refuse each other, and both
 * log their versions. Raise the newest with every change; raise the oldest when code for an old
 * version goes.
 */
#ifndef CAIRN_AGENT_PROCESS_PROTOCOL_H
#define CAIRN_AGENT_PROCESS_PROTOCOL_H

#ifndef CAIRN_PROTOCOL_OLDEST
#define CAIRN_PROTOCOL_OLDEST 17
#endif
#ifndef CAIRN_PROTOCOL_NEWEST
#define CAIRN_PROTOCOL_NEWEST 17 /* the upgrade test builds with a newer one */
#endif

#endif
